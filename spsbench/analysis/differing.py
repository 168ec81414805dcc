"""What keeps two runs from being compared, or may explain a difference between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RULES = {
    "task": "the task",
    "prompt_sha256": "the wording of prompts",
    "chat_template": "the use of a chat template",
    "max_new_tokens": "the length limit",
    "stop": "the stop strings",
    "fixed_length": "the use of a fixed length",
}
"""Keys of a run's identity that must agree: with another rule a token's time is another quantity."""

SETTINGS = {
    "data": "the data",
    "pair": "the pair of models",
    "dtype": "the dtype",
    "seed": "the seed",
    "extract": "how code is taken from answers",
}
"""Keys of a run's identity that may well be the point of a comparison."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Sentences without a full stop.

    Attributes:
        refusals: the runs answer different questions.
        machine: they ran on different hardware.
        warnings: what else may explain a difference.
    """

    refusals: tuple[str, ...]
    machine: tuple[str, ...]
    warnings: tuple[str, ...]


def reasons(a: Mapping[str, Any], b: Mapping[str, Any], arms: Sequence[str]) -> Reasons:
    """Compare two runs' records.

    Args:
        a, b: the content of run.json of both.
        arms: names of the arms that both have.
    """
    ours, theirs = (run.get("identity") or {} for run in (a, b))
    return Reasons(
        (*_differing(RULES, ours, theirs), *_rules(a, b), *_samplings(ours, theirs, arms)),
        tuple(_hardware(a, b)),
        (*_differing(SETTINGS, ours, theirs), *_software(a, b)),
    )


def _differing(titles: Mapping[str, str], a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for key, title in titles.items():
        if a.get(key) != b.get(key):
            yield f"{title} differs{_values(a.get(key), b.get(key))}"


def _values(a: Any, b: Any) -> str:
    """`` (xsum, humaneval)`` where both are short enough to read."""
    texts = [str(value) for value in (a, b)]
    return f" ({', '.join(texts)})" if all(len(text) <= 40 for text in texts) else ""


def _rules(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    yield from _differing({"verification_rule": "the verification rule"}, a, b)


def _samplings(a: Mapping[str, Any], b: Mapping[str, Any], arms: Sequence[str]) -> Iterator[str]:
    """Two arms of one name may warp differently (--top-p and others)."""
    ours, theirs = (_sampling_by_name(run) for run in (a, b))
    names = [name for name in ours if name in theirs and any(f"-{name}" in arm for arm in arms)]
    for name in names:
        if ours[name] != theirs[name]:
            yield f"the sampling {name!r} differs"


def _sampling_by_name(identity: Mapping[str, Any]) -> dict[str, Any]:
    arms = identity.get("arms") or []
    return {str(arm.get("sampling_name")): arm.get("sampling") for arm in arms if isinstance(arm, Mapping)}


def _hardware(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = (run.get("environment") or {} for run in (a, b))
    yield from _differing(
        {"model": "the CPU", "usable_threads": "the number of CPU threads"},
        ours.get("cpu") or {},
        theirs.get("cpu") or {},
    )
    if [gpu.get("name") for gpu in ours.get("gpus") or []] != [
        g.get("name") for g in theirs.get("gpus") or []
    ]:
        yield "the GPU differs"
    yield from _differing({"device": "the device"}, a.get("identity") or {}, b.get("identity") or {})


def _software(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    ours, theirs = (run.get("environment") or {} for run in (a, b))
    yield from _differing({"spsbench": "the version of spsbench", "python": "Python"}, ours, theirs)
    libraries = [side.get("libraries") or {} for side in (ours, theirs)]
    yield from _differing({name: name for name in libraries[0]}, *libraries)
    commits = [(side.get("git") or {}).get("commit") for side in (ours, theirs)]
    if commits[0] != commits[1]:
        yield "the commit of spsbench differs"
    models = [run.get("models") or {} for run in (a, b)]
    yield from _differing({"threads": "the number of threads used"}, *models)

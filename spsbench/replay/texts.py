"""Texts that a target wrote: the ArS sequences of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.config import RunConfig, resolve
from spsbench.errors import UsageError
from spsbench.records import SamplingParams
from spsbench.store import RunStore

FEWEST_TOKENS = 200
"""With fewer tokens nothing is said: an interval over them would be as wide as what it is about."""


@dataclass(frozen=True, slots=True)
class TargetText:
    """One of them.

    Attributes:
        name: of its prompt; texts of one prompt belong together.
        sample: its number among those.
        prompt, tokens: ids.
    """

    name: str
    sample: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """The texts of one sampling.

    Attributes:
        directory: of the run.
        config: of the run.
        info: its ``run.json``.
        sampling_name, sampling: how they were drawn.
        texts: in the order of the journal.
    """

    directory: Path
    config: RunConfig
    info: dict[str, Any]
    sampling_name: str
    sampling: SamplingParams
    texts: tuple[TargetText, ...]

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(text.tokens) for text in self.texts)


def texts_of(directory: Path, sampling: str | None = None) -> Written:
    """The ArS sequences of a run.

    Args:
        directory: of the run.
        sampling: by name; the first that was run with ArS if not given.

    Raises:
        UsageError: it holds no run, no ArS of that sampling, or too little text.
    """
    with RunStore.open(directory) as store:
        info = store.run_info()
        arm = _arm(directory, store.arms(), sampling)
        prompts = {prompt.example_id: prompt.ids for prompt in store.prompts()}
        texts = tuple(
            TargetText(s.example_id, s.sample_index, prompts[s.example_id], tuple(s.generation.tokens))
            for s in store.samples()
            if s.arm == arm["arm"] and s.error is None and s.generation.tokens
        )
    found = Written(
        directory,
        resolve({}, directory / "config.yaml"),
        info,
        str(arm["sampling"]),
        SamplingParams(**arm["params"]),
        texts,
    )
    if found.tokens < FEWEST_TOKENS:
        raise UsageError(
            f"{directory} has {found.tokens} tokens of ArS, and replay needs {FEWEST_TOKENS}.",
            flag="RUN",
            remedy="Continue it with a larger --limit.",
        )
    return found


def _arm(directory: Path, arms: Sequence[dict[str, Any]], sampling: str | None) -> dict[str, Any]:
    ars = [arm for arm in arms if arm["method"] == "ars"]
    if not ars:
        raise UsageError(
            f"{directory} has no ArS sequences, whose texts are what is replayed.",
            flag="RUN",
            remedy="Run it with --arms ars or ars,sps.",
        )
    if sampling is None:
        return ars[0]
    for arm in ars:
        if arm["sampling"] == sampling:
            return arm
    names = ", ".join(arm["sampling"] for arm in ars)
    raise UsageError(
        f"{directory} has no ArS sequences under {sampling!r}.", flag="--sampling", remedy=f"It has {names}."
    )

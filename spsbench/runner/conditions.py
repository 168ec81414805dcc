"""What a sequence is measured under besides the run's identity: kept for each, never mixed in silence.

Threads, backends, versions and hardware may change tokens (in the last bits of a logit) and do change
times. A run that goes on under others would pool the speeds of two configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.runner.plan import Plan
from spsbench.runner.schedule import Turn
from spsbench.store import RunStore, differences, plain
from spsbench.summary_types import Conditions

AUTO = "auto"
FLAG = "--allow-mixed"


def conditions_of(plan: Plan, environment: Mapping[str, Any]) -> Conditions:
    """The conditions that a plan would be measured under now; ``threads`` as asked for, perhaps ``auto``.

    Args:
        plan: the run.
        environment: of ``describe_environment``.
    """
    libraries, git = environment["libraries"], environment["git"] or {}
    found: Conditions = {
        "threads": plan.config.threads,
        "backend": plan.backend,
        "cpu": environment["cpu"]["model"],
        "cores": environment["cpu"]["usable_threads"],
        "gpus": [gpu.get("name") for gpu in environment["gpus"]],
        "python": environment["python"],
        "spsbench": environment["spsbench"],
        "commit": git.get("commit"),
        "torch": libraries.get("torch"),
        "transformers": libraries.get("transformers"),
        "tokenizers": libraries.get("tokenizers"),
        "numpy": libraries.get("numpy"),
        "onnxruntime": libraries.get("onnxruntime"),
    }
    if plan.quantiser is not None:
        found["torchao"] = libraries.get("torchao")
    if plan.placement is not None:
        found["device_map"] = plan.placement.asked
    return found


def require_unchanged(
    directory: Path, plan: Plan, due: Callable[[RunStore], Sequence[Turn]], now: Conditions
) -> None:
    """Refuse to continue a run under other conditions than its last sequence was measured under.

    Nothing is written, so that a refused attempt leaves the run as it was. A directory without a run,
    a run of another identity or one that lacks nothing is not this function's business.

    Args:
        directory: of the run.
        plan: what is asked now.
        due: the turns that the run in a store still lacks.
        now: of ``conditions_of``.

    Raises:
        UsageError: with one line per difference, and the flag that allows it.
    """
    if not (directory / "run.json").is_file():
        return
    with RunStore.open(directory) as store:
        info = store.run_info()
        same_run = not differences(info.get("identity"), plain(plan.identity()))
        if not same_run or not store.done() or not due(store):
            return
    before = _last(info.get("conditions"))
    _refuse(directory, differences(before, plain(_resolved(now, before))))


def with_engines(store: RunStore, now: Conditions, versions: Mapping[str, str]) -> Conditions:
    """The conditions with the versions of engines of others; those that did not start keep the recorded one.

    Args:
        store: of the run.
        now: without them.
        versions: by the text that an engine was asked for with; empty where there is none.
    """
    known = _last(store.run_info().get("conditions")).get("engines", {}) | dict(versions)
    return {**now, "engines": known} if known else now


def require_same_engines(store: RunStore, now: Conditions) -> None:
    """Refuse to continue a run with another version of an engine than measured before.

    Raises:
        UsageError: see ``require_unchanged``.
    """
    before = _last(store.run_info().get("conditions")).get("engines", {})
    here = now.get("engines", {})
    if store.done():
        _refuse(store.directory, differences(before, {name: here[name] for name in before}))


def _refuse(directory: Path, lines: Sequence[str]) -> None:
    if lines:
        raise UsageError(
            "\n".join([f"{directory} was measured under other conditions (its value -> yours):", *lines, ""]),
            flag=FLAG,
            remedy=f"Use the same, or name another --out. {FLAG} continues all the same: the report then "
            "shows the times under each and pools none.",
        )


def recorded_threads(plan: Plan, store: RunStore) -> int | None:
    """What ``auto`` was decided to be when the run began; None if open still, or if a number is given."""
    if plan.config.threads != AUTO or not store.done():
        return None
    recorded = _last(store.run_info().get("conditions")).get("threads")
    return None if recorded is None else int(recorded)


def settle(store: RunStore, now: Conditions) -> int:
    """Note the conditions that the next sequences are measured under; their index in the run's list.

    Args:
        store: open for writing.
        now: of ``conditions_of``, with the number of threads.
    """
    known = list(store.run_info().get("conditions") or []) if store.done() else []
    if store.done() and not known:
        known = [{}]  # a run of a version that kept none
    found = plain(now)
    for index, other in enumerate(known):
        if not differences(other | {"engines": {}}, found | {"engines": {}}) and _agree(other, found):
            # An engine that could not be started before has measured nothing under other conditions.
            known[index] = found
            store.note(conditions=known)
            return index
    store.note(conditions=[*known, found])
    return len(known)


def _agree(one: Conditions, other: Conditions) -> bool:
    """Whether no engine of others is of two versions."""
    versions = one.get("engines", {}), other.get("engines", {})
    return all(versions[1].get(engine, version) == version for engine, version in versions[0].items())


def _resolved(now: Conditions, before: Conditions) -> Conditions:
    """``auto`` is decided once for a run: what was recorded is used again.

    Engines of others tell their versions when they are started, see ``require_same_engines``.
    """
    if "engines" in before:
        now = {**now, "engines": before["engines"]}
    if now["threads"] == AUTO and "threads" in before:
        return {**now, "threads": before["threads"]}
    return now


def _last(known: Sequence[Conditions] | None) -> Conditions:
    return known[-1] if known else {}

"""A run that was continued under other threads, kernels, versions or hardware: its times are not pooled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spsbench.analysis.warning import warnings
from spsbench.store.conditions import condition

if TYPE_CHECKING:
    import pandas as pd

Summary = dict[str, Any]
Summarise = Callable[["pd.DataFrame", "pd.DataFrame", Mapping[str, Any]], Summary]

_ROW_TIMES = (
    *("ms_per_token", "end_to_end_ms_per_token", "speedup", "end_to_end_speedup", "speedup_halves"),
    *("share_slower", "loop_time", "prediction", "target_mode", "draft_mode"),
)
_SUMMARY_TIMES = ("prediction", "why", "ceiling", "tails", "hindsight", "recommendation")
_SHOWN = ("rows", "contention")
_KEY = ("process", "example_id", "sample_index", "arm")


def separated(
    samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any], summarise: Summarise
) -> Summary:
    """The summary of a run; one of several conditions has its times under each, and none over all.

    Args:
        samples: rows with ``condition``, an index into ``conditions`` of ``info``.
        loops, info, summarise: see ``analysis.summary.summarise``.

    Returns:
        what ``summarise`` answers, with ``conditions``: empty for a run of one, else for each its
        ``settings``, those that ``differ`` between them, its ``rows`` and ``contention``.
    """
    summary = summarise(samples, loops, info)
    present = sorted({int(index) for index in samples["condition"]}) if "condition" in samples else []
    if len(present) < 2:
        return summary | {"conditions": []}
    known = [condition(info, index) for index in present]
    parts = [_of(index, samples, loops, info, summarise) for index in present]
    entries = [
        {"settings": settings, "differ": _differing(settings, known)} | {key: part[key] for key in _SHOWN}
        for settings, part in zip(known, parts, strict=True)
    ]
    return _without_times(summary) | {"conditions": entries}


def _of(
    index: int,
    samples: pd.DataFrame,
    loops: pd.DataFrame,
    info: Mapping[str, Any],
    summarise: Summarise,
) -> Summary:
    own = samples[samples["condition"] == index]
    key = [name for name in _KEY if name in own and name in loops]
    kept = loops.merge(own[key], on=key, sort=False) if len(loops) else loops
    measured = set(own["arm"])
    arms = [arm for arm in info.get("arms") or [] if arm["arm"] in measured]
    return summarise(own, kept, {**info, "arms": arms, "expected_sequences": None})


def _differing(settings: Mapping[str, Any], known: list[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for other in known for name in other)
    return {
        name: settings.get(name)
        for name in names
        if any(other.get(name) != known[0].get(name) for other in known)
    }


def _without_times(summary: Summary) -> Summary:
    steady = [row | {"drifted": False} for row in summary["rows"]]
    rest = (summary["losslessness"], summary["parity"])
    of_drift = set(warnings(summary["rows"], *rest)) - set(warnings(steady, *rest))
    return (
        summary
        | {"rows": [row | dict.fromkeys(_ROW_TIMES) for row in steady]}
        | dict.fromkeys(_SUMMARY_TIMES)
        | {"warnings": [sentence for sentence in summary["warnings"] if sentence not in of_drift]}
    )

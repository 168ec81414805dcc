"""Why, which K, and whether the baseline is weak, in sentences: the same on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.analysis.ceiling import DISPATCH_BOUND, weak_baseline
from spsbench.axes import place
from spsbench.report.wording import MANY


def headline(summary: Mapping[str, Any]) -> list[str]:
    """What must stand beside every speedup: that the baseline is weak, or that no floor exists."""
    share = weak_baseline(summary.get("ceiling"))
    if share is None:
        return []
    return [f"Weak baseline: ArS reaches {100 * share:.0f}% of its bandwidth floor."]


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """One recommendation per sweep, then why the fastest arm of each sampling is no faster."""
    found = [str(entry["sentence"]) for entry in summary.get("recommendation") or []]
    explained = fastest(summary)
    if len(explained) > MANY:
        explained = [max(explained, key=lambda entry: float(entry["speedup"]))]
    found += [str(entry["sentence"]) for entry in explained]
    found += [regime] if (regime := _regime(summary)) else []
    return found


def fastest(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The explained arm with the largest speedup of each series along K."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    lossless = (entry for entry in summary.get("why") or [] if entry.get("lossless", True))
    for entry in lossless:
        key = place({"method": "sps", **entry}, "k")
        if key not in best or entry["speedup"] > best[key]["speedup"]:
            best[key] = entry
    return list(best.values())


def _regime(summary: Mapping[str, Any]) -> str:
    found = summary.get("ceiling")
    if not found or found["regime"] != DISPATCH_BOUND:
        return ""
    return "The weights fit in the last-level cache: a loop saves dispatch, not memory traffic."

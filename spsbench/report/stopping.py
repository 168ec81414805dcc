"""Why a run ended before its last prompt, and which intervals its table has."""

from __future__ import annotations

from spsbench.records import Speedup
from spsbench.stats.anytime import FEWEST, relative_half_width
from spsbench.summary_types import Stopping, Summary

ANYTIME = (
    "The speedup's intervals are those of a 95% confidence sequence, for each arm by itself: they stay valid "
    "when a run stops because they are narrow."
)

TOO_FEW = f"Below {FEWEST} prompts there is no interval that stays valid when a run stops by its width."


def sentences(summary: Summary) -> list[str]:
    """How the run ended and what its intervals are; nothing for a run of a fixed number of prompts."""
    found = summary.get("stopping")
    if found is None:
        return []
    widths = _widths(summary)
    said = [_ended(found, widths)]
    if found["anytime"] and widths:
        said.append(ANYTIME)
    elif found["anytime"] and found["prompts"] < FEWEST:
        said.append(TOO_FEW)
    return [sentence for sentence in said if sentence]


def _ended(found: Stopping, widths: list[float]) -> str:
    """E.g. ``Stopped after 24 of 40 prompts: the speedup is known to ±4.6%, asked was ±5%.``"""
    counted = f"{found['prompts']} of {found['pool']} prompts"
    known, precision = _known(widths), found["precision"]
    asked = "" if precision is None else f", asked was {_share(precision)}"
    if found["reason"] == "precision":
        return f"Stopped after {counted}: {known}{asked}." if known else f"Stopped after {counted}{asked}."
    if found["reason"] == "budget":
        budget = f"Budget of {found['budget_s']:g} s reached after {counted}"
        return f"{budget}: {known}{asked}." if known else f"{budget}{asked}."
    if found["reason"] == "prompts" and precision is not None:
        said = known or "there is no interval"
        return f"All {found['prompts']} prompts were run: {said}{asked}. Raise --limit."
    return ""


def _known(widths: list[float]) -> str:
    """How narrow the intervals are, as half-widths relative to the speedups."""
    if not widths:
        return ""
    if len(widths) == 1:
        return f"the speedup is known to {_share(widths[0])}"
    return f"the narrowest speedup is known to {_share(min(widths))}, the widest to {_share(max(widths))}"


def _widths(summary: Summary) -> list[float]:
    """Relative half-widths of the SpS arms' intervals."""
    found = [row["speedup"] for row in summary["rows"] if row["method"] == "sps" and row["speedup"]]
    widths = [relative_half_width(Speedup(**one)) for one in found]
    return [width for width in widths if width is not None]


def _share(value: float) -> str:
    return f"±{100 * value:.2g}%"

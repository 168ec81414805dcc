"""The report's sections on what a K that adapts could gain, the tails of latency, and positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.report import judgement, wording
from spsbench.report.naming import in_full
from spsbench.report.tables import right
from spsbench.report.wording import escape
from spsbench.summary_types import ArmPositions, ArmTails, MeanSd, Spread, Summary

Run = Mapping[str, Any]

TAILS_NOTE = (
    "Until N tokens: to the end of the loop that brings the N-th, over sequences that have so many. The "
    "paper's clock gives every loop the arm's mean loop time, so that its deviation comes from loop counts."
)


def hindsight(summary: Summary, run: Run) -> list[str]:
    """The bound on what a K per loop could gain."""
    found = summary.get("hindsight") or []
    if not found:
        return []
    lines = ["## Hindsight, a bound", ""]
    for entry in found:
        fixed = "ArS" if entry["best_k"] == 0 else f"the best fixed K={entry['best_k']}"
        lines.append(
            f"* {escape(entry['sampling'])}: the right K in every loop, known only afterwards, would have "
            f"taken {wording.milliseconds(entry['oracle_ms_per_token'])} ms/token against "
            f"{wording.milliseconds(entry['fixed_ms_per_token'])} for {fixed}: at most "
            f"{entry['gain_bound']:.2f}x faster, for K up to {entry['max_k']} (reached in "
            f"{wording.percent(entry['censored'])} of its loops)."
        )
        lines += [f"  * {escape(judgement.adapted(arm))}" for arm in entry.get("adaptive", ())]
    return [*lines, "", "No sampler can know this beforehand: a bound on adapting K, not a promise."]


def tails(summary: Summary, run: Run) -> list[str]:
    """P50, P90 and P99 of latency by arm."""
    found = summary.get("tails")
    if not found:
        return []
    n = found["n_tokens"]
    titles = [
        *("sequence P50 s", "P90 s", "P99 s"),
        *(f"until {n} tokens P50 s", "P90 s", "P99 s", "mean ± sd s", "paper's clock s", "prompts slower"),
    ]
    table = in_full().table([*map(right, titles)], found["arms"], _tail)
    lines = ["## Tails", "", *table.as_markdown(), ""]
    few = any(arm["p99_rests_on_few"] for arm in found["arms"])
    return [*lines, TAILS_NOTE + (" With fewer than 100 sequences P99 is nearly the slowest." if few else "")]


def _tail(arm: ArmTails) -> list[str]:
    whole, until, clock = arm["sequence_s"], arm["until_n_s"], arm["paper_clock_s"]
    return [
        *_quantiles(whole),
        *_quantiles(until),
        _spread(until),
        _spread(clock),
        wording.percent(arm["share_slower"]),
    ]


def _quantiles(found: Spread | None) -> list[str]:
    if found is None:
        return [wording.NOTHING] * 3
    return [wording.number(value, 3) for value in (found["p50"], found["p90"], found["p99"])]


def _spread(found: MeanSd | None) -> str:
    return wording.NOTHING if found is None else f"{found['mean']:.3f} ± {found['sd']:.3f}"


def positions(summary: Summary, run: Run) -> list[str]:
    """Mean acceptance length by where in the output a loop began."""
    found = summary.get("positions") or []
    starts = sorted({(part["start"], part["end"]) for arm in found for part in arm["bins"]}, key=_start)
    if len(starts) < 2:
        return []

    def cells(arm: ArmPositions) -> list[str]:
        at = {
            part["start"]: f"{part['mean_acceptance_length']:.2f} ({part['loops']})" for part in arm["bins"]
        }
        return [at.get(start, wording.NOTHING) for start, _ in starts]

    columns = [right(_bin(*place)) for place in starts]
    table = in_full().table(columns, found, cells)
    lines = ["### Along the output", "", *table.as_markdown(), ""]
    return [*lines, "`mean_acceptance_length` of the loops that began at these output tokens (how many)."]


def _start(place: tuple[int, int | None]) -> int:
    return place[0]


def _bin(start: int, end: int | None) -> str:
    return f"{start}+" if end is None else f"{start}-{end - 1}"


SECTIONS = (hindsight,)
DETAILS = (positions, tails)

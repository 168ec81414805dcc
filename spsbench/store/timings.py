"""Which timings of a sequence count: those that others left alone, else the least disturbed.

A sequence is deterministic, so it may be timed again. What decides is how much CPU contention took while it
was timed, never how long it took: to keep the fastest would flatter the arm that varies more. All arms of a
prompt, or of a wave, are timed again together and count together, since they are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spsbench.base.records import ELAPSED, SPENT

Key = tuple[str, int, str]
"""(example_id, sample_index, arm)."""

Round = tuple[str, int | None]
"""What is timed together, arm after arm: (example_id, sample_index), or (wave, None)."""

CLEAN = 0.02
"""Share of its time that others may take of a timing, and of all that count: below it nothing is corrected.
On a quiet machine nine timings in ten lose less than 0.5%."""

EXACT, SAMPLED = ("waited_s", "throttled_s"), ("stolen_s", "shared_s")
LOST = (*EXACT, *SAMPLED)
"""CPU contention, under the names by which a sequence keeps it among its conditions; the latter two are
counted too seldom to say anything of a short one."""

_STRETCH_S = 1.0
"""Stolen time is counted in hundredths of a second over all CPUs: a share needs about a hundred of them."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing of a sequence, without what was generated.

    Attributes:
        attempt: 1 for the first; all timings of a round that were made together have the same.
        elapsed_s: seconds that it lasted, prefill included.
        exact_s, sampled_s: CPU contention, see ``EXACT``; None where the machine does not count it.
        spent_s: seconds until its output had been read again, if it was.
    """

    key: Key
    round: Round
    attempt: int
    failed: bool
    elapsed_s: float
    exact_s: float | None
    sampled_s: float | None
    spent_s: float
    condition: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Timing:
        lost = row["conditions"] or {}
        wave = row.get("wave")
        elapsed_s = float(lost.get(ELAPSED, row["prefill_s"] + row["decode_s"]))
        return cls(
            key=(row["example_id"], row["sample_index"], row["arm"]),
            round=(row["example_id"], row["sample_index"]) if wave is None else (wave, None),
            attempt=row.get("attempt") or 1,
            failed=row["error"] is not None,
            elapsed_s=elapsed_s,
            exact_s=_sum_of(lost, EXACT),
            sampled_s=_sum_of(lost, SAMPLED),
            spent_s=float(lost.get(SPENT, elapsed_s)),
            condition=row.get("condition") or 0,
        )


def _sum_of(lost: Mapping[str, float], names: Iterable[str]) -> float | None:
    known = [lost[name] for name in names if lost.get(name) is not None]
    return sum(known) if known else None


def shares_lost(timings: Sequence[Timing]) -> list[float | None]:
    """Return for each timing, in order of time, the share that CPU contention took; None if unknown.

    Its own waiting, and of what is sampled the share of its stretch of about a second.
    """
    shares: list[float | None] = []
    for stretch in _stretches(timings):
        elapsed_s = sum(timing.elapsed_s for timing in stretch)
        counted = [timing.sampled_s for timing in stretch if timing.sampled_s is not None]
        stolen = sum(counted) / elapsed_s if counted and elapsed_s > 0 else None
        for timing in stretch:
            waited = None
            if timing.exact_s is not None and timing.elapsed_s > 0:
                waited = timing.exact_s / timing.elapsed_s
            known = [share for share in (waited, stolen) if share is not None]
            shares.append(min(sum(known), 1.0) if known else None)
    return shares


def _stretches(timings: Iterable[Timing]) -> Iterator[list[Timing]]:
    stretch: list[Timing] = []
    for timing in timings:
        stretch.append(timing)
        if sum(each.elapsed_s for each in stretch) >= _STRETCH_S:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def rounds(timings: Sequence[Timing]) -> dict[Round, dict[int, float | None]]:
    """Return every round's whole attempts, each with the largest share that CPU contention took of an arm.

    An attempt is whole that has timed every sequence of the first, and none of them failed; the first is
    there whatever became of it.
    """
    shares = dict(zip(map(id, timings), shares_lost(timings), strict=True))
    by_round: dict[Round, dict[int, float | None]] = {}
    ordered = sorted(timings, key=lambda timing: (timing.round[0], timing.round[1] or 0, timing.attempt))
    for place, group in groupby(ordered, key=lambda timing: timing.round):
        attempts = {number: list(own) for number, own in groupby(group, key=lambda timing: timing.attempt)}
        due = {timing.key for timing in attempts.get(1, []) if not timing.failed}
        for number, own in attempts.items():
            last = {timing.key: timing for timing in own}  # one that failed may have been tried again
            sound = {key for key, timing in last.items() if not timing.failed}
            if number == 1 or sound >= due:
                known = [share for timing in last.values() if (share := shares[id(timing)]) is not None]
                by_round.setdefault(place, {})[number] = max(known, default=None)
    return by_round


def counting(attempts: Mapping[int, float | None]) -> list[int]:
    """Return the attempts of a round that count: all clean ones, else the earliest that lost least."""
    clean = [number for number, share in attempts.items() if share is None or share <= CLEAN]
    return clean or [min(attempts, key=lambda number: (attempts[number] or 0.0, number))]


def disturbed(timings: Sequence[Timing]) -> list[Round]:
    """Return the rounds without a clean attempt, in the order in which they were first made."""
    shares_of = rounds(timings)
    first = dict.fromkeys(timing.round for timing in timings)
    return [
        each
        for each in first
        if each in shares_of
        and not any(share is None or share <= CLEAN for share in shares_of[each].values())
    ]


def least_disturbed(lost: Sequence[float], least: int = 5) -> list[int]:
    """Choose rounds by CPU contention's share: the clean ones, in order; or so many that lost least."""
    clean = [number for number, share in enumerate(lost) if share <= CLEAN]
    if len(clean) >= min(least, len(lost)):
        return clean
    return sorted(sorted(range(len(lost)), key=lambda number: (lost[number], number))[:least])


_SECONDS = ("prefill_s", "decode_s", "latency_s")


def averaged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of a sequence's lines that count, with the mean seconds of all that wrote the same
    tokens.

    ``timings`` are their decoding seconds by attempt, where that is more than the first.
    """
    row = rows[0]
    alike = [other for other in rows if other["token_ids"] == row["token_ids"]]
    alike = [other for other in alike if _loops(other) == _loops(row)]
    if [other.get("attempt") or 1 for other in alike] == [1]:
        return row
    row = row | {
        name: _mean([other[name] for other in alike]) for name in _SECONDS if row.get(name) is not None
    }
    row["conditions"] = {
        name: _mean([(other["conditions"] or {}).get(name) for other in alike])
        for name in row["conditions"] or {}
    }
    if row["loops"] is not None:
        loops = [other["loops"] for other in alike]
        row["loops"] = {
            name: [_mean(values) for values in zip(*(own[name] for own in loops), strict=True)]
            if name.endswith("_s") and column is not None
            else column
            for name, column in row["loops"].items()
        }
    row["timings"] = {str(other.get("attempt") or 1): other["decode_s"] for other in alike}
    return row


def _loops(row: Mapping[str, Any]) -> Any:
    """What loops drafted and accepted, and in which columns seconds are known."""
    loops = row["loops"]
    if loops is None:
        return None
    return loops["drafted"], loops["accepted"], [name for name, column in loops.items() if column is None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) and known else None

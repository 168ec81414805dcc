"""Decoding times of a run's sequences as they arrive, paired by prompt without a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from spsbench.records import Arm
from spsbench.stats.bootstrap import ratio
from spsbench.stats.speedup import PairedTimes


class Timing(NamedTuple):
    """Of a finished sequence: decoding seconds and output tokens."""

    decode_s: float
    tokens: int


class ComparedTimes(NamedTuple):
    """An SpS arm beside its baseline; ``times`` are over complete prompts."""

    arm: str
    baseline: str
    times: PairedTimes


_Row = tuple[float, float, float, float]


class Timings:
    """What was measured so far; equal to ``speedup.pair`` over the same sequences (tested)."""

    def __init__(self, due: int) -> None:
        self._due = due
        self._tried: dict[str, dict[tuple[int, str], Timing | None]] = {}
        self._complete: dict[str, None] = {}
        self._rows: dict[tuple[str, str], dict[str, _Row]] = {}

    def __contains__(self, example_id: object) -> bool:
        """Whether a prompt was begun."""
        return example_id in self._tried

    def expect(self, due: int) -> None:
        """Change how many sequences a prompt has."""
        self._due = due
        whole = (example for example, tried in self._tried.items() if len(tried) >= due)
        self._complete = dict.fromkeys(whole)

    def add(self, example_id: str, sample_index: int, arm: str, timing: Timing | None) -> None:
        """Count a sequence; None for one that failed. A later attempt takes the place of an earlier one."""
        tried = self._tried.setdefault(example_id, {})
        tried[sample_index, arm] = timing
        if len(tried) >= self._due:
            self._complete[example_id] = None
        for rows in self._rows.values():
            rows.pop(example_id, None)

    def forget_times(self) -> None:
        """Keep what was tried, and none of its times."""
        self._tried = {example: dict.fromkeys(tried) for example, tried in self._tried.items()}
        self._rows.clear()

    @property
    def complete(self) -> Collection[str]:
        """Ids of the prompts each of whose sequences was tried, in the order in which they were run."""
        return self._complete

    def compared(self, arms: Iterable[Arm]) -> list[ComparedTimes]:
        """Every SpS arm that finished a sequence together with its baseline.

        The baseline is that of every table: the fastest ArS arm of the same sampling and batch.
        """
        arms = tuple(arms)
        paces = {arm: self._pace(arm.name) for arm in arms if arm.method == "ars"}
        found = []
        for arm in arms:
            own = {
                other.name: pace
                for other, pace in paces.items()
                if pace is not None and (other.sampling_name, other.batch) == (arm.sampling_name, arm.batch)
            }
            if arm.method == "sps" and own:
                baseline = min(own, key=own.__getitem__)
                found.append(ComparedTimes(arm.name, baseline, self.pair(baseline, arm.name)))
        return [one for one in found if len(one.times)]

    def pair(self, baseline: str, arm: str) -> PairedTimes:
        """Sums per complete prompt over the sequences that finished in both arms."""
        rows = self._rows.setdefault((baseline, arm), {})
        for example in self.complete:
            if example not in rows:
                rows[example] = _row(self._tried[example], baseline, arm)
        table = [rows[example] for example in self.complete if rows[example][1] > 0]
        return PairedTimes(*np.array(table, dtype=np.float64).reshape(-1, 4).T)

    def _pace(self, arm: str) -> float | None:
        """Decoding seconds a token, over complete prompts."""
        done = list(self._finished(arm))
        return ratio(sum(timing.decode_s for timing in done), sum(timing.tokens for timing in done))

    def _finished(self, arm: str) -> Iterator[Timing]:
        for example in self.complete:
            for (_, name), timing in self._tried[example].items():
                if name == arm and timing is not None:
                    yield timing


def _row(tried: dict[tuple[int, str], Timing | None], baseline: str, arm: str) -> _Row:
    """Baseline seconds and tokens, arm seconds and tokens of a prompt."""
    both = [
        (base, own)
        for (index, name), base in tried.items()
        if name == baseline and base is not None and (own := tried.get((index, arm))) is not None
    ]
    return (
        sum(base.decode_s for base, _ in both),
        float(sum(base.tokens for base, _ in both)),
        sum(own.decode_s for _, own in both),
        float(sum(own.tokens for _, own in both)),
    )

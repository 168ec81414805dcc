"""What the interval of a speedup holds: prompts, stretches of time, and CPU contention.

**Prompts** are one source of error, by the jackknife (``speedup``). **Time** is another: how fast a
machine is for either arm changes within tens of seconds by what no counter shows, and the more slowly the
more. Over eight minutes of one process the speedup of 8 seconds went from 1.44 to 1.90, with an Allan
deviation of 4% at 8, 16, 32 and 64 seconds alike: 1/f noise, whose mean over a run is hardly better known
than that of a fifth of it. So the spread of a run's own fifths goes into the interval undivided; of a merged
run it is that of the fifths of all shards, whose order says nothing of time between them. Which process
measured explains nothing beyond that (``benchmarks/processes.py`` at commit d3b7459b, decision 0048).
**Others** took what ``waited_s`` and ``stolen_s`` count: where that is more than ``CLEAN`` of an arm's time,
the end that it may hide is moved by all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spsbench.base.arrays import Floats, Ints
from spsbench.base.records import SHARD, Speedup
from spsbench.stats.anytime import paired_speedup
from spsbench.stats.bootstrap import LEVEL
from spsbench.stats.speedup import column, hidden, row_by_row, shown
from spsbench.store.summary_types import RatioInterval

if TYPE_CHECKING:
    import pandas as pd

OVER_TIME = "prompts and time"
"""In run.json: its intervals hold stretches of time, too."""

STRETCHES = 5
"""Parts of a run by time. More of them are nearer to each other in time, and their noise is larger."""

FEWEST_TIMES = 4
"""Timings of a prompt from which each stretch has all prompts; there are as many stretches, five at most."""

FEWEST_IN_STRETCH = 8
"""Timings without which a stretch has no spread of its own to be held against."""


@dataclass(frozen=True, slots=True)
class Certainty:
    """How the intervals of a run's speedups are made.

    Attributes:
        anytime: they are those of a confidence sequence, see ``paired_speedup``; time is not in them.
        over_time: time is in them.
        lost: by arm the share of its time that CPU contention took, of arms for which that is to be held.
    """

    anytime: bool = False
    over_time: bool = False
    lost: Mapping[str, float] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether so little contention was measured that no interval holds any."""
        return not self.lost

    def speedup(
        self, baseline: pd.DataFrame | None, arm: pd.DataFrame, *, prefill: bool = False
    ) -> RatioInterval | None:
        """Return the speedup of an arm over its baseline, if it has one, with its full interval."""
        return self.interval(self.without_contention(baseline, arm, prefill=prefill), baseline, arm)

    def interval(
        self, speedup: Speedup | None, baseline: pd.DataFrame | None, arm: pd.DataFrame
    ) -> RatioInterval | None:
        """The interval of ``without_contention`` with CPU contention of the two, as in ``summary.json``."""
        if speedup is None or baseline is None or not len(baseline) or not len(arm):
            return shown(speedup)
        return shown(self.with_contention(speedup, str(baseline["arm"].iloc[0]), str(arm["arm"].iloc[0])))

    def without_contention(
        self, baseline: pd.DataFrame | None, arm: pd.DataFrame, *, prefill: bool = False
    ) -> Speedup | None:
        """Return the speedup as if CPU contention had cost nothing."""
        if baseline is None:
            return None
        speedup = paired_speedup(baseline, arm, prefill=prefill, anytime=self.anytime)
        several = "process" in arm and arm["process"].nunique() > 1  # whose spread is in it, and time with it
        if speedup is None or not self.over_time or self.anytime or several:
            return speedup
        return with_error(speedup, time_half_width(baseline, arm))

    def with_contention(self, speedup: Speedup, baseline: str, arm: str) -> Speedup:
        """Return the interval with CPU contention: at worst all of it delayed only one of the two."""
        ends = speedup.low, speedup.high
        return Speedup(speedup.ratio, *hidden(ends, self.lost.get(baseline, 0.0), self.lost.get(arm, 0.0)))


def with_error(speedup: Speedup, half_width: float) -> Speedup:
    """Return an interval with the half-width of a further, independent error of the logarithm."""
    if speedup.low is None or speedup.high is None or half_width == 0.0:
        return speedup
    below = math.log(speedup.ratio / speedup.low)
    above = math.log(speedup.high / speedup.ratio)
    low, high = (
        speedup.ratio * math.exp(sign * math.hypot(end, half_width))
        for sign, end in ((-1, below), (1, above))
    )
    return Speedup(speedup.ratio, low, high)


def time_half_width(baseline: pd.DataFrame, arm: pd.DataFrame) -> float:
    """Return the half-width, of the ratio's logarithm, due to stretches of time; 0 with too few timings.

    A timing's part is the logarithm of the baseline's seconds a loop over the arm's: what prompts do shows
    in tokens per loop. Where every prompt was timed in every stretch its own mean is taken off, and the
    stretches' standard deviation counts whole, times Student's quantile: under 1/f noise of 0 to 7% that
    holds the mean of an hour in 92 to 99% of runs (``tests/stats/test_certainty.py``). Where prompts were
    timed once what they explain of it is taken off. Shards may have run at the same time on one machine, so
    that their stretches give no more degrees of freedom than those of one.
    """
    from scipy.special import stdtrit

    table = _timings(baseline, arm)
    if table is None:
        return 0.0
    costs, weights, rounds, shards = table
    times = len(rounds) / len(set(rounds.tolist()))
    repeated = times >= FEWEST_TIMES
    stretches = min(STRETCHES, int(times)) if repeated else STRETCHES
    place = _stretch_numbers(shards, stretches)
    if place.max() + 1 < stretches:
        return 0.0
    rest = costs - _round_means(costs, weights, rounds)
    placed = place >= 0
    rest, weights, place = rest[placed], weights[placed], place[placed]
    weight = np.bincount(place, weights)
    means = np.bincount(place, weights * rest) / weight
    variance = float(means.var(ddof=1))
    if not repeated:
        counts = np.bincount(place)
        within = np.bincount(place, (weights * (rest - means[place])) ** 2) / weight**2
        variance -= float((within * counts / (counts - 1)).mean())
    quantile = float(stdtrit(stretches - 1, (1.0 + LEVEL) / 2.0))
    return quantile * math.sqrt(max(variance, 0.0))


def _stretch_numbers(shards: Floats, most: int) -> Ints:
    """Of each timing, -1 where a shard has too few timings for any.

    A shard, or a run that was not divided, has so many at most, in order of time.
    """
    place = np.full(len(shards), -1, np.int64)
    for shard in np.unique(shards):
        own = np.flatnonzero(shards == shard)
        if count := min(most, len(own) // FEWEST_IN_STRETCH):
            own_place = np.minimum(np.arange(len(own)) // (len(own) // count), count - 1)
            place[own] = place.max() + 1 + own_place
    return place


def _round_means(costs: Floats, weights: Floats, rounds: Floats) -> Floats:
    """Of each timing's round; for a round with one timing the mean over all such rounds."""
    _, code, counts = np.unique(rounds, return_inverse=True, return_counts=True)
    means = np.bincount(code, weights * costs) / np.bincount(code, weights)
    single = counts[code] == 1
    if single.any():
        common = np.average(costs[single], weights=weights[single])
        return np.where(single, common, means[code])
    return np.asarray(means[code])


def _timings(baseline: pd.DataFrame, arm: pd.DataFrame) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Of both, in order of time: log cost ratio, weight, numbers of round and shard."""
    left, right = row_by_row(baseline, arm)
    if not len(left):
        return None
    # Rows of a batch share their seconds: a wave is one timing.
    waves = "wave" in left and left["wave"].notna().any()
    if waves:
        return None
    order = np.argsort(np.argsort(np.asarray(left.index)))
    timings: list[tuple[int, int, int, float, float]] = []
    works = [_loops_or_tokens(frame) for frame in (left, right)]
    for number, (baseline_costs, arm_costs) in enumerate(
        zip(_decode_s_by_attempt(left), _decode_s_by_attempt(right), strict=True)
    ):
        for attempt in baseline_costs.keys() & arm_costs.keys():
            if baseline_costs[attempt] > 0 and arm_costs[attempt] > 0:
                timings.append(
                    (int(attempt), int(order[number]), number, baseline_costs[attempt], arm_costs[attempt])
                )
    if not timings:
        return None
    timings.sort()
    _, _, rounds, base_s, arm_s = (
        np.asarray(values, dtype=np.float64) for values in zip(*timings, strict=True)
    )
    row = rounds.astype(np.int64)
    work = [each[row] for each in works]
    costs = np.log(base_s / work[0] * work[1] / arm_s)
    return costs, np.sqrt(base_s * arm_s), rounds, _shard_numbers(left)[row]


def _shard_numbers(samples: pd.DataFrame) -> Floats:
    """Of each sequence, 0 without one."""
    if "conditions" not in samples:
        return np.zeros(len(samples))
    known = (each if isinstance(each, Mapping) else {} for each in samples["conditions"])
    return np.array([conditions.get(SHARD) or 0.0 for conditions in known])


def _decode_s_by_attempt(samples: pd.DataFrame) -> list[dict[str, float]]:
    seconds = column(samples, "decode_s").tolist()
    if "timings" not in samples:
        return [{"1": first} for first in seconds]
    return [
        recorded if isinstance(recorded, dict) else {"1": first}
        for recorded, first in zip(samples["timings"], seconds, strict=True)
    ]


def _loops_or_tokens(samples: pd.DataFrame) -> Floats:
    """Of each sequence: tokens where loops are not seen."""
    tokens = column(samples, "new_tokens")
    if "loop_count" not in samples:
        return tokens
    loops = column(samples, "loop_count")
    return np.where(loops > 0, loops, tokens)

"""An interval of the speedup that stays valid when a run stops because the interval is narrow enough.

An ordinary 95% interval covers the truth in 95% of runs of a length fixed beforehand. A run that looks
after every prompt and stops at the first narrow one stops early where the spread was underestimated, and
covers less. A confidence sequence covers the truth at all lengths at once, in 95% of runs, and therefore
at whichever length a run stops (Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic
confidence sequences").

Used here is the asymptotic sequence of Waudby-Smith et al. 2024, "Time-uniform central limit theory and
asymptotic confidence sequences", on the logarithm of the ratio with its jackknife standard error, with the
Gaussian mixture replaced by its counterpart for an unknown variance (Wang and Ramdas 2025, "Anytime-valid
t-tests and confidence sequences for Gaussian means with unknown variance"). Both agree for many prompts;
for few the second is wider, as Student's t is wider than the normal.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np

from spsbench.base.records import Arm, Speedup
from spsbench.stats.bootstrap import LEVEL, pseudo_values, ratio
from spsbench.stats.speedup import (
    PairedTimes,
    pair,
    pair_processes,
    ratio_of_sums,
    speedup_over_processes,
    speedup_over_prompts,
)

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20
"""Prompts below which there is no interval. In simulated runs whose ratios are strongly skewed the sequence
covers the truth at all lengths from 20 on at once in 93 to 96% of them, and where a run stops by width in 98%
or more (``tests/stats/test_anytime.py``)."""

TIGHTEST = 100
"""Number of prompts for which the sequence is tuned; fixed beforehand, never from data."""

EXPECTABLE = 8
"""Prompts from which the spread is known well enough to say how many will be needed."""


def critical_value(n: int) -> float:
    """Return what the standard error over n prompts is multiplied by; infinite for very few prompts.

    For a fixed n Student's t gives about 2; that it holds for every n costs a factor of about 1.6.
    """
    if n < 2:
        return math.inf
    spent = -2.0 * math.log(1.0 - LEVEL)
    # The variance of the mixing distribution, by the appendix of Waudby-Smith et al. 2024 on optimising rho.
    growth = 1.0 + n * (spent + math.log(spent) + 1.0) / TIGHTEST
    # The mixture martingale crosses 1 / (1 - LEVEL) where t^2 / (n - 1) is `excess`.
    threshold = math.expm1((math.log(growth) + spent) / n)
    shrunk = 1.0 - (1.0 + threshold) / growth
    return math.sqrt((n - 1) * threshold / shrunk) if shrunk > 0 else math.inf


def standard_error(times: PairedTimes) -> float | None:
    """Return the jackknife standard error of the log ratio; None below two prompts or without variation."""
    n = len(times)
    if n < 2 or not times.ratio():
        return None
    with np.errstate(all="ignore"):
        values = pseudo_values(times.columns(), lambda sums: np.log(ratio_of_sums(sums)))
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return error if math.isfinite(error) and error > 1e-12 else None


def anytime_speedup(times: PairedTimes) -> Speedup | None:
    """Return the ratio with its place in a 95% confidence sequence: valid whenever the run stops.

    The level holds for each arm by itself, as that of the ordinary interval does.
    """
    point, n = times.ratio(), len(times)
    if point is None:
        return None
    error = standard_error(times) if n >= FEWEST else None
    if error is None:
        return Speedup(point, None, None)
    half = critical_value(n) * error
    return Speedup(point, point * math.exp(-half), point * math.exp(half))


def paired_speedup(
    baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False, anytime: bool = False
) -> Speedup | None:
    """Return the speedup over one process's prompts, or over processes and their prompts; see ``speedup``."""
    if anytime:
        return anytime_speedup(pair(baseline, arm, prefill=prefill))
    if "process" in arm and arm["process"].nunique() > 1:
        return speedup_over_processes(pair_processes(baseline, arm, prefill=prefill))
    return speedup_over_prompts(pair(baseline, arm, prefill=prefill))


def relative_half_width(speedup: Speedup) -> float | None:
    """Return half the interval's width as a share of the estimate; None where there is no interval."""
    if speedup.low is None or speedup.high is None or not speedup.ratio > 0:
        return None
    return (speedup.high - speedup.low) / 2.0 / speedup.ratio


def prompts_needed(times: PairedTimes, precision: float) -> int | None:
    """Return how many prompts like these give an interval whose relative half-width is ``precision``.

    An expectation from the spread so far, not a promise; None below ``EXPECTABLE`` prompts.
    """
    error = standard_error(times) if len(times) >= EXPECTABLE else None
    if error is None:
        return None
    spread = error * math.sqrt(len(times))
    half_width = math.asinh(precision)
    counts = range(FEWEST, 10**9)
    index = bisect_left(counts, -half_width, key=lambda n: -critical_value(n) * spread / math.sqrt(n))
    return counts[index] if index < len(counts) else None


Timing = tuple[float, int]
"""Of a finished sequence: decoding seconds and output tokens."""


class Timings:
    """What was measured so far; equal to ``speedup.pair`` over the same sequences (tested)."""

    def __init__(self, due: int) -> None:
        self._due = due
        self._tried: dict[str, dict[tuple[int, str], Timing | None]] = {}
        self._complete: dict[str, None] = {}
        self._rows: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {}

    def __contains__(self, example_id: object) -> bool:
        """Return whether a prompt was begun."""
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
        """Keep which sequences were tried, but none of their times."""
        self._tried = {example: dict.fromkeys(tried) for example, tried in self._tried.items()}
        self._rows.clear()

    @property
    def complete(self) -> Collection[str]:
        """Return the ids of the prompts each of whose sequences was tried, in the order in which they ran."""
        return self._complete

    def compared(self, arms: Iterable[Arm]) -> list[tuple[str, str, PairedTimes]]:
        """Return every SpS arm that finished a sequence which its baseline finished too: both, and their
        times.

        The baseline is that of every table: the fastest ArS arm of the same sampling and batch.
        """
        arms = tuple(arms)
        paces = {arm: self._seconds_per_token(arm.name) for arm in arms if arm.method == "ars"}
        pairs = []
        for arm in arms:
            baselines = {
                other.name: pace
                for other, pace in paces.items()
                if pace is not None and (other.sampling_name, other.batch) == (arm.sampling_name, arm.batch)
            }
            if arm.method == "sps" and baselines:
                baseline = min(baselines, key=baselines.__getitem__)
                pairs.append((arm.name, baseline, self.pair(baseline, arm.name)))
        return [one for one in pairs if len(one[2])]

    def pair(self, baseline: str, arm: str) -> PairedTimes:
        """Return sums per complete prompt over the sequences that finished in both arms."""
        rows = self._rows.setdefault((baseline, arm), {})
        for example in self.complete:
            if example not in rows:
                rows[example] = _seconds_and_tokens(self._tried[example], baseline, arm)
        table = [rows[example] for example in self.complete if rows[example][1] > 0]
        return PairedTimes(*np.array(table, dtype=np.float64).reshape(-1, 4).T)

    def _seconds_per_token(self, arm: str) -> float | None:
        """Of decoding, over complete prompts."""
        done = [
            timing
            for example in self.complete
            for (_, name), timing in self._tried[example].items()
            if name == arm and timing is not None
        ]
        return ratio(sum(seconds for seconds, _ in done), sum(tokens for _, tokens in done))


def _seconds_and_tokens(
    tried: dict[tuple[int, str], Timing | None], baseline: str, arm: str
) -> tuple[float, ...]:
    """Of the baseline, then of the arm."""
    sums = np.zeros(4)
    for (sample_index, name), baseline_timing in tried.items():
        arm_timing = tried.get((sample_index, arm))
        if name == baseline and baseline_timing is not None and arm_timing is not None:
            sums += (*baseline_timing, *arm_timing)
    return (*map(float, sums),)

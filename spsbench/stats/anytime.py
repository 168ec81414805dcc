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
from typing import Protocol

import numpy as np

from spsbench.records import Speedup
from spsbench.stats.bootstrap import LEVEL, pseudo_values
from spsbench.stats.speedup import PairedTimes, ratio_of_sums

FEWEST = 20
"""Prompts below which there is no interval. In simulated runs whose ratios are strongly skewed the sequence
covers the truth at all lengths from 20 on at once in 93 to 96% of them, and where a run stops by width in 98%
or more (``tests/stats/test_anytime.py``)."""

TIGHTEST = 100
"""Number of prompts for which the sequence is tuned; fixed beforehand, never from data."""

EXPECTABLE = 8
"""Prompts from which the spread is known well enough to say how many will be needed."""

_MOST = 10**9


class _Ends(Protocol):
    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def _mixture_variance() -> float:
    """Variance of the mixing distribution of standardised means, by the approximation of Waudby-Smith et al.

    2024 (appendix on optimising rho) for the prompts in ``TIGHTEST``.
    """
    spent = -2.0 * math.log(1.0 - LEVEL)
    return (spent + math.log(spent) + 1.0) / TIGHTEST


def critical_value(n: int) -> float:
    """By what the standard error over n prompts is multiplied; infinite for very few.

    For a fixed n Student's t gives about 2; that it holds for every n costs a factor of about 1.6.
    """
    if n < 2:
        return math.inf
    growth = 1.0 + n * _mixture_variance()
    # The mixture martingale crosses 1 / (1 - LEVEL) where t^2 / (n - 1) is `excess`.
    threshold = math.expm1((math.log(growth) - 2.0 * math.log(1.0 - LEVEL)) / n)
    shrunk = 1.0 - (1.0 + threshold) / growth
    return math.sqrt((n - 1) * threshold / shrunk) if shrunk > 0 else math.inf


def standard_error(times: PairedTimes) -> float | None:
    """Of the logarithm of the ratio, by the jackknife; None without variation or below two prompts."""
    n = len(times)
    if n < 2 or not times.ratio():
        return None
    with np.errstate(all="ignore"):
        values = pseudo_values(times.columns(), lambda sums: np.log(ratio_of_sums(sums)))
    found = float(values.std(ddof=1)) / math.sqrt(n)
    return found if math.isfinite(found) and found > 1e-12 else None


def anytime_speedup(times: PairedTimes) -> Speedup | None:
    """The ratio with its place in a 95% confidence sequence: valid whenever the run stops.

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


def relative_half_width(found: _Ends) -> float | None:
    """Half the interval's width as a share of the estimate; None where there is no interval."""
    if found.low is None or found.high is None or not found.ratio > 0:
        return None
    return (found.high - found.low) / 2.0 / found.ratio


def prompts_needed(times: PairedTimes, precision: float) -> int | None:
    """How many prompts like these give an interval whose relative half-width is ``precision``.

    An expectation from the spread so far, not a promise; None below ``EXPECTABLE`` prompts.
    """
    error = standard_error(times) if len(times) >= EXPECTABLE else None
    if error is None:
        return None
    spread, asked = error * math.sqrt(len(times)), math.asinh(precision)
    low, high = FEWEST - 1, FEWEST
    while critical_value(high) * spread / math.sqrt(high) > asked:
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if critical_value(middle) * spread / math.sqrt(middle) > asked:
            low = middle
        else:
            high = middle
    return high

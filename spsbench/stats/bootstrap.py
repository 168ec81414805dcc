"""Intervals over prompts by the jackknife, and numbers for JSON.

Ratios of pooled times, means and figures of a corpus are functions of column sums, whose leave-one-out
values are a subtraction. The interval is Student's over the jackknife's pseudo-values, stretched to the side
to which they are skewed (decision 0033; ``benchmarks/coverage.py`` measures what it covers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from spsbench.base import files
from spsbench.base.arrays import Floats
from spsbench.base.records import Interval

T = TypeVar("T")


def finite(value: Any) -> float | None:
    """Return the value as a float, or None where it is missing, not a number or infinite."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def ratio(numerator: float, denominator: float) -> float | None:
    """Return the quotient, or None where it does not exist."""
    return finite(numerator / denominator) if denominator else None


def plain(value: T) -> T:
    """Return the value with every part in JSON's own types: numpy unwrapped, NaN and infinity as None.

    For mypy it keeps its type: a summary's numbers may be numpy's before, and are Python's afterwards.
    """
    return cast("T", files.plain(value))


LEVEL = 0.95
RESAMPLES = 2_000
SEED = 20_230_202
"""Of what still resamples: where speculation stops paying, and predictions from timed rounds."""


def ratio_of_sums(sums: Floats) -> Floats:
    """[m] ratios of sums [2, m], for ``pooled_interval``."""
    return np.asarray(sums[0] / sums[1])


def pseudo_values(columns: Sequence[Floats], statistic: Callable[[Floats], Floats]) -> Floats:
    """[prompts] numbers whose mean is the statistic and whose spread is its jackknife variance.

    For a mean they are the values themselves, so that tests of a mean are tests of any statistic of sums
    (Efron and Tibshirani 1993, chapter 11); centred, so that the mean is the statistic itself.

    Args:
        columns: [prompts] each, at least two prompts.
    """
    data = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
    total = data.sum(axis=1, keepdims=True)
    left_out = np.asarray(statistic(total - data))
    return np.asarray(statistic(total)[0] + (data.shape[1] - 1) * (left_out.mean() - left_out))


def quantiles(values: Floats, share: float) -> tuple[float, float]:
    """Return how far below and above the mean an interval reaches, in standard errors of the mean.

    Student's quantile, lengthened on the side to which the values are skewed by the skewness term of
    Johnson's modified t (1978; Hall 1992). The other side is not shortened, which would lose more than it
    balances.

    Args:
        values: [prompts], two or more.
    """
    from scipy.special import stdtrit

    n = len(values)
    centred = values - values.mean()
    quantile = float(stdtrit(n - 1, share))
    variance = float(np.square(centred).mean())
    skewness = float((centred**3).mean()) / variance**1.5 if variance > 0 else 0.0
    stretch = skewness * (1.0 + 2.0 * quantile**2) / (6.0 * math.sqrt(n))
    return quantile - min(stretch, 0.0), quantile + max(stretch, 0.0)


def pooled_ratio(over: Floats, under: Floats, *, most: float = math.inf) -> Interval:
    """Return one sum over another, [prompts] each, with its 95% interval over prompts."""
    low, high = pooled_interval([over, under], ratio_of_sums, log=True)
    return Interval(float(over.sum() / under.sum()), low, None if high is None else min(high, most))


def pooled_interval(
    columns: Sequence[Floats], statistic: Callable[[Floats], Floats], *, log: bool = False
) -> tuple[float, float] | tuple[None, None]:
    """Return the 95% interval of a statistic of sums over prompts, each with all its columns.

    Args:
        columns: [prompts] each.
        statistic: from sums, [columns, m], to values, [m].
    """
    if len(columns[0]) < 2:
        return None, None
    with np.errstate(all="ignore"):
        values = pseudo_values(columns, (lambda sums: np.log(statistic(sums))) if log else statistic)
        if not np.isfinite(values).all():
            return None, None
        below, above = quantiles(values, (1.0 + LEVEL) / 2.0)
        error = values.std(ddof=1) / math.sqrt(len(values))
        ends = np.array([values.mean() - below * error, values.mean() + above * error])
        low, high = map(float, np.exp(ends) if log else ends)
    if not math.isfinite(high) or np.isclose(low, high, rtol=1e-12, atol=0.0):
        return None, None
    return low, high


def simultaneous_ratios(over: Floats, under: Floats, seed: int = SEED) -> list[Interval]:
    """Return ratios of sums over prompts, with 95% intervals that all hold at once.

    The largest deviation of any ratio's log, in its own standard errors, has its law from resampled prompts
    (bootstrap-t; each side by its own quantile, since ratios of few prompts are skewed). Where every prompt
    has the same ratio there is no interval.

    Args:
        over: [prompts].
        under: [prompts, ratios].
    """
    n = len(under)
    estimates = over.sum() / under.sum(0)
    if n < 2:
        return [Interval(float(each), None, None) for each in estimates]
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)

    def deviations(weights: Floats) -> tuple[Floats, Floats]:
        a, b = weights @ over[:, None], weights @ under
        squares = weights @ over[:, None] ** 2 / a**2 + weights @ under**2 / b**2
        variance = squares - 2 * (weights @ (over[:, None] * under)) / (a * b)
        return np.log(a / b / estimates), np.sqrt(np.maximum(variance, 0.0))

    with np.errstate(all="ignore"):
        (_,), (errors,) = deviations(np.ones((1, n)))
        logs, errors_drawn = deviations(weights)
        # prompts that are copies of each other leave an error of rounding, which nothing may be divided by
        studentised = np.where((errors_drawn > 1e-9) & (errors > 1e-9), logs / errors_drawn, 0.0)
    above, below = (float(np.quantile((sign * studentised).max(1), (1 + LEVEL) / 2)) for sign in (1.0, -1.0))
    intervals = []
    for estimate, error in zip(estimates.tolist(), errors.tolist(), strict=True):
        ends = (math.exp(-above * error), math.exp(below * error)) if error > 1e-9 else (math.nan, math.nan)
        intervals.append(Interval(estimate, *(finite(estimate * end) for end in ends)))
    return intervals


def interval_of_mean(values: Sequence[float]) -> Interval:
    """Return the mean of one number a prompt, with its 95% interval."""
    data = np.asarray(values, np.float64)
    low, high = pooled_interval([data, np.ones(len(data))], ratio_of_sums)
    return Interval(float(data.mean()), low, high)

"""Intervals over prompts by a pooled bootstrap, and numbers for JSON.

scipy's jackknife builds n resamples of n - 1 prompts each: at the paper's 11,305 prompts that takes
most of a report's time. Ratios of pooled times and means are functions of column sums, whose
leave-one-out values are a subtraction. The interval is the same (Efron 1987); a test compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from spsbench.records import Interval

T = TypeVar("T")


def finite(value: Any) -> float | None:
    """The value as a float, or None where it is missing, not a number or infinite."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def ratio(numerator: float, denominator: float) -> float | None:
    """Their quotient, or None where it does not exist."""
    if not denominator:
        return None
    return finite(numerator / denominator)


def plain(value: T) -> T:
    """The value with every part in JSON's own types: numpy unwrapped, NaN and infinity as None.

    For mypy it keeps its type: a summary's numbers may be numpy's before, and are Python's afterwards.
    """
    return cast("T", _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return finite(value)
    return value


Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint8]

LEVEL = 0.95
RESAMPLES = 2_000
SEED = 20_230_202
_BATCH_CELLS = 4_000_000
_KEPT_CELLS = 60_000_000


def ratio_of_sums(sums: Floats) -> Floats:
    """[m] of sums [2, m], for ``pooled_interval``."""
    return np.asarray(sums[0] / sums[1])


def pseudo_values(columns: Sequence[Floats], statistic: Callable[[Floats], Floats]) -> Floats:
    """One number a prompt, [prompts]: their mean is the statistic, their spread its jackknife variance.

    For a mean they are the values themselves, so that tests of a mean are tests of any statistic of sums
    (Efron and Tibshirani 1993, chapter 11); centred, so that the mean is the statistic itself.

    Args:
        columns: [prompts] each, at least two prompts.
        statistic: as for ``pooled_interval``.
    """
    data = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
    total = data.sum(axis=1, keepdims=True)
    left_out = np.asarray(statistic(total - data))
    return np.asarray(statistic(total)[0] + (data.shape[1] - 1) * (left_out.mean() - left_out))


def pooled_ratio(over: Floats, under: Floats) -> Interval:
    """One sum over another with its 95% interval over prompts.

    Args:
        over, under: [prompts].
    """
    return Interval(float(over.sum() / under.sum()), *pooled_interval([over, under], ratio_of_sums))


def pooled_interval(
    columns: Sequence[Floats], statistic: Callable[[Floats], Floats]
) -> tuple[float, float] | tuple[None, None]:
    """The 95% interval of a statistic of sums, resampling prompts with all their columns together.

    Args:
        columns: [prompts] each.
        statistic: from sums, [columns, m], to values, [m].

    Returns:
        both ends, or None twice where they do not exist: one prompt, or data without variation.
    """
    data = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
    if data.shape[1] < 2:
        return None, None
    total = data.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        point = float(statistic(total)[0])
        drawn = np.asarray(statistic(_resampled_sums(data)))
        left_out = np.asarray(statistic(total - data))
        shares = _shares(point, drawn, left_out)
    if not (np.isfinite(drawn).all() and np.isfinite(shares).all()):
        return None, None
    low, high = (finite(end) for end in np.quantile(drawn, shares))
    if low is None or high is None or np.isclose(low, high, rtol=1e-12, atol=0.0):
        return None, None
    return low, high


def is_zero_somewhere(columns: Sequence[Floats], statistic: Callable[[Floats], Floats]) -> bool:
    """Whether a statistic of sums is 0 in a resample of ``pooled_interval``: nothing can be divided by it.

    Args:
        columns, statistic: as for ``pooled_interval``.
    """
    data = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
    with np.errstate(all="ignore"):
        return bool((np.asarray(statistic(_resampled_sums(data))) == 0).any())


def _shares(point: float, drawn: Floats, left_out: Floats) -> Floats:
    """Which quantiles of the resampled values are the ends: bias-corrected and accelerated."""
    from scipy.special import ndtr, ndtri

    below = (np.mean(drawn < point) + np.mean(drawn <= point)) / 2.0
    bias = ndtri(below)
    influence = left_out.mean() - left_out
    acceleration = (influence**3).sum() / (6.0 * (influence**2).sum() ** 1.5)
    z = bias + ndtri(np.array([(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]))
    return np.asarray(ndtr(bias + z / (1.0 - acceleration * z)))


def _resampled_sums(data: Floats) -> Floats:
    """Column sums of every resample, [columns, RESAMPLES]."""
    n = data.shape[1]
    batches = _kept(n) if RESAMPLES * n <= _KEPT_CELLS else _drawn(n)
    return np.concatenate([data @ counts.astype(np.float64).T for counts in batches], axis=1)


@lru_cache(maxsize=2)
def _kept(n: int) -> tuple[Counts, ...]:
    """The resamples of n prompts, which all statistics of a run share."""
    return tuple(_drawn(n))


def _drawn(n: int) -> Iterable[Counts]:
    """How often each resample holds each prompt, in batches [b, n] that make up RESAMPLES rows."""
    rng = np.random.default_rng(SEED)
    batch = max(1, _BATCH_CELLS // n)
    for start in range(0, RESAMPLES, batch):
        rows = min(batch, RESAMPLES - start)
        cells = rng.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(cells.ravel(), minlength=rows * n).reshape(rows, n).astype(np.uint8)

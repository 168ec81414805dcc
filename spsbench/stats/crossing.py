"""Up to where speculation pays, as the number of sequences at once grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from spsbench.records import Interval
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED, Floats


def crossing(sizes: Sequence[int], speedups: Sequence[float]) -> float:
    """The size at which speedups fall below 1 and stay there.

    Between two sizes it is interpolated, the logarithm of one over that of the other. 0 says that speculation
    pays at none that was measured, infinity that it pays at the largest.
    """
    above = [place for place, speedup in enumerate(speedups) if speedup > 1]
    if not above:
        return 0.0
    last = above[-1]
    if last == len(speedups) - 1:
        return math.inf
    high, after = math.log(speedups[last]), speedups[last + 1]
    share = high / (high - math.log(after)) if after > 0 else 0.0
    return float(sizes[last] * (sizes[last + 1] / sizes[last]) ** share)


def pays_up_to(
    sizes: Sequence[int], data: Sequence[Floats], speedup: Callable[[Floats], Floats], *, together: bool
) -> Interval | None:
    """``crossing`` with its 95% interval over waves.

    Args:
        data: of each size its sums by wave, [columns, waves].
        speedup: from sums, [columns, m], to values, [m].
    """
    points, drawn = [], []
    generator = np.random.default_rng(SEED)
    counts: Floats | None = None
    for own in data:
        waves = own.shape[1]
        if counts is None or not together:
            counts = generator.multinomial(waves, np.full(waves, 1 / waves), RESAMPLES).astype(np.float64)
        with np.errstate(all="ignore"):
            points.append(float(speedup(own.sum(axis=1, keepdims=True))[0]))
            drawn.append(speedup(own @ counts.T))
    if not np.isfinite(points).all():
        return None
    point = crossing(sizes, points)
    if not np.isfinite(drawn).all() or min(own.shape[1] for own in data) < 2:
        return Interval(point, None, None)
    found = np.sort([crossing(sizes, list(each)) for each in zip(*drawn, strict=True)])
    low, high = (float(found[_place(share)]) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(point, low, high)


def _place(share: float) -> int:
    return min(RESAMPLES - 1, int(share * RESAMPLES))

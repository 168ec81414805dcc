"""Quantiles of values that count unequally."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spsbench.base import Floats

_ROUNDING = 1e-12
"""Of weights: in their sum, and below 0. ``numpy.quantile`` refuses the second."""


def weighted_quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> Floats:
    """Return for each share the least value that with all smaller ones has so much of the weight."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) / weights.sum()
    places = np.searchsorted(below, np.array(shares) - _ROUNDING).clip(max=len(order) - 1)
    quantiles: Floats = values[order][places]
    return quantiles

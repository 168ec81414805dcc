"""One definition of a weighted quantile: by exact fractions, and where a sum of weights is rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spsbench.parts.whatif.quantiles import weighted_quantiles

SHARES = (0.5, 0.9, 0.99)


def _by_definition(weighted: list[tuple[int, int]], share: Fraction) -> int:
    total = sum(weight for _, weight in weighted)
    values = sorted(value for value, _ in weighted)
    return next(
        value
        for value in values
        if sum(weight for other, weight in weighted if other <= value) >= share * total
    )


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=30).filter(
        lambda weighted: any(weight for _, weight in weighted)
    )
)
def test_a_quantile_is_the_least_value_that_reaches_its_share(weighted: list[tuple[int, int]]) -> None:
    values, weights = zip(*weighted, strict=True)
    exact = [_by_definition(weighted, Fraction(str(share))) for share in SHARES]
    for scale in (1.0, 0.1, 1 / 7):
        found = weighted_quantiles(np.array(values, np.float64), scale * np.array(weights), SHARES)
        assert found.tolist() == exact


def test_rounding_moves_no_quantile() -> None:
    values, weights = np.arange(10.0), np.full(10, 0.1)
    assert np.cumsum(weights)[8] < 0.9  # which would make it the last one
    assert weighted_quantiles(values, weights, SHARES).tolist() == [4.0, 8.0, 9.0]
    weights[0] = -1e-17  # as differences of sums leave it
    assert weighted_quantiles(values, weights, [0.0]).tolist() == [0.0]

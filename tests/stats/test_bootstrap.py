from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from spsbench.stats.bootstrap import finite, plain, pooled_interval, pooled_ratio, ratio, ratio_of_sums


def _draw(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 60, n).astype(np.float64)
    return tokens * rng.lognormal(0, 0.4, n), tokens


def test_of_a_mean_without_skewness_it_is_students() -> None:
    values, ones = np.array([1.0, 2.0, 4.0, 6.0, 7.0]), np.ones(5)
    assert pooled_interval((values, ones), ratio_of_sums) == pytest.approx(
        tuple(ttest_1samp(values, 0.0).confidence_interval())
    )


def test_skewness_lengthens_its_own_side_alone() -> None:
    """A tail of slow values lengthens the upper end; the same values as speeds, the lower one."""
    over, under = _draw(12, 3)
    over[np.argmax(over / under)] *= 5
    found, turned = pooled_ratio(over, under), pooled_ratio(under, over)
    low, high = (np.log(end / found.estimate) for end in (found.low, found.high))
    assert high > 1.3 * -low
    assert (turned.low, turned.high) == (pytest.approx(1 / found.high), pytest.approx(1 / found.low))
    assert pooled_ratio(over, under, most=1.0).high == 1.0


def test_nothing_to_vary_gives_no_interval() -> None:
    ones = np.ones(20)
    assert pooled_interval((ones, ones), ratio_of_sums) == (None, None)
    assert pooled_interval((ones[:1], ones[:1]), ratio_of_sums) == (None, None)
    assert pooled_interval((np.arange(20.0), np.zeros(20)), ratio_of_sums) == (None, None)
    assert pooled_interval((np.arange(2.0), np.ones(2)), ratio_of_sums, log=True) == (None, None)


def test_plain_unwraps_numpy_and_drops_what_json_has_no_word_for() -> None:
    value = {
        "a": np.float64(1.5),
        2: [np.int64(3), math.nan],
        "c": (np.array([1.0, math.inf]), np.bool_(True)),
    }
    assert plain(value) == {"a": 1.5, "2": [3, None], "c": [[1.0, None], True]}
    json.dumps(plain(value), allow_nan=False)


def test_plain_leaves_text_none_and_whole_numbers_alone() -> None:
    assert plain({"s": "x", "n": None, "i": 7}) == {"s": "x", "n": None, "i": 7}


def test_finite_and_ratio() -> None:
    assert finite(None) is None
    assert finite(math.inf) is None
    assert finite("2.5") == 2.5
    assert ratio(1.0, 0.0) is None
    assert ratio(1.0, 4.0) == 0.25

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from spsbench.stats import bootstrap as pooled
from spsbench.stats.bootstrap import pooled_interval


def _ratio(sums: Any) -> Any:
    return sums[0] / sums[1]


def _draw(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 60, n).astype(np.float64)
    return tokens * rng.lognormal(0, 0.4, n), tokens


def test_it_is_the_interval_of_scipy() -> None:
    columns = _draw(60, 3)
    ours = pooled_interval(columns, _ratio)
    theirs = bootstrap(
        columns,
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="BCa",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours[0] == pytest.approx(theirs.low, abs=0.06 * width)
    assert ours[1] == pytest.approx(theirs.high, abs=0.06 * width)


def test_it_covers_as_it_says() -> None:
    inside = 0
    for seed in range(120):
        low, high = pooled_interval(_draw(50, seed), _ratio)
        inside += low is not None and high is not None and low <= np.exp(0.08) <= high
    assert 104 <= inside <= 120  # 95% of 120, give or take 3.5 standard errors


def test_nothing_to_vary_gives_no_interval() -> None:
    ones = np.ones(20)
    assert pooled_interval((ones, ones), _ratio) == (None, None)
    assert pooled_interval((ones[:1], ones[:1]), _ratio) == (None, None)
    assert pooled_interval((np.arange(20.0), np.zeros(20)), _ratio) == (None, None)


def test_ten_thousand_prompts_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "_KEPT_CELLS", 1)  # as if they were too many to keep the resamples
    low, high = pooled_interval(_draw(10_000, 1), _ratio)
    assert low is not None
    assert high is not None
    assert low < np.exp(0.08) < high
    assert high - low < 0.04

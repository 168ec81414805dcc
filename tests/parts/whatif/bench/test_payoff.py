"""What forwards allow, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spsbench.law.theory import expected_tokens
from spsbench.parts.whatif.bench.forwards import Forwards, bench_loop_cost, payoff, untrusted, verdict
from spsbench.parts.whatif.commands.screen import _grid
from spsbench.parts.whatif.messages.bench import NO_K_GAINS


def times(*ms: float) -> Forwards:
    """The same times in each of ten rounds, for 1, 2 ... rows."""
    return Forwards(tuple(range(1, len(ms) + 1)), np.tile(np.array(ms) / 1e3, (10, 1)))


def test_a_loop_costs_k_drafts_and_a_block() -> None:
    target, draft = times(10, 10, 11, 12), times(1, 1)
    assert bench_loop_cost(target, draft, 3) == pytest.approx((3 * 1 + 12) / 10)
    found = payoff(target, draft, [1, 2, 3])
    at = next(row for row in found["grid"] if row["alpha"] == 0.8)
    assert at["speedups"][3] == pytest.approx(expected_tokens(0.8, 3) / 1.5)
    assert at["best_k"] == 3
    assert found["break_even"][1] == pytest.approx(0.1)
    assert str(verdict(found)).startswith("Speculation can pay here from alpha 0.10 on (K=1)")


def test_where_nothing_pays_it_says_so() -> None:
    found = payoff(times(10, 25, 40), times(8, 8), [1, 2])
    assert found["break_even"] == {1: None, 2: None}
    assert {row["best_k"] for row in found["grid"]} == {0}
    assert verdict(found) == NO_K_GAINS


def test_a_loop_that_costs_no_more_than_a_step_pays_at_any_alpha() -> None:
    """An alpha of 0.00, from which on it pays, would say nothing."""
    found = payoff(times(10, 9.6, 31), times(0.1, 0.1), [1, 2])
    assert found["break_even"] == {1: 0.0, 2: None}
    assert str(verdict(found)).startswith("Speculation can pay here at any alpha (K=1); ")
    (*_, last) = _grid(found).rows
    assert last == ["pays from", "any", "never"]


def test_the_ratio_has_an_interval_over_rounds() -> None:
    rng = np.random.default_rng(0)
    seconds = np.array([1.0, 1.3]) * rng.lognormal(0, 0.1, (40, 2))
    ratio, low, high = Forwards((1, 5), seconds).ratio(5)
    assert low < ratio < high
    assert low < 1.3 < high
    assert times(3, 6).ratio(2) == (2.0, 2.0, 2.0)


def test_times_that_others_disturbed_are_not_trusted() -> None:
    clean, shared = (replace(times(10, 11, 12), lost_share=share) for share in (0.02, 0.31))
    assert untrusted({"target": clean, "draft": times(1, 1)}) is None
    told = str(untrusted({"target": shared, "draft": times(1, 1)}))
    assert told.startswith("UNTRUSTED: contention took 31% of the time of these forwards. ")


def test_a_forward_of_more_rows_that_is_clearly_faster_is_impossible() -> None:
    """t(3)/t(1) of 0.44 predicted 6.10x, where 1.37x was measured."""
    told = str(untrusted({"target": times(10, 8, 4.4, 10), "draft": times(1, 1)}))
    assert "UNTRUSTED: t(3)/t(1) of the target is 0.44 [0.44, 0.44], and 3 rows are more work" in told
    assert untrusted({"target": times(10, 9.6, 11), "draft": times(1, 0.96)}) is None, "kernels differ"
    noise = np.random.default_rng(0).lognormal(0, 0.8, (10, 1))
    noisy = Forwards((1, 2), np.hstack([np.ones((10, 1)), 0.9 * noise]))
    assert noisy.ratio(2)[2] > 1.0
    assert untrusted({"target": noisy, "draft": times(1, 1)}) is None, "faster by chance, as far as is known"

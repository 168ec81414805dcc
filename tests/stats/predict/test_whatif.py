"""One model of a loop: its best K, and where it is as fast as ArS."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.law import theory
from spsbench.stats.predict.whatif import WhatIf, alpha_needed, c_allowed, independent, leviathan

alphas = st.floats(0.0, 1.0)
ratios = st.floats(0.0, 2.0)


@given(alphas, ratios)
def test_the_best_k_beats_every_other_and_the_bound(alpha: float, c: float) -> None:
    loop = leviathan(alpha, c)
    k = loop.best_k(range(1, 21))
    best = theory.walltime_factor(alpha, c, k)
    assert loop.speedup(k) == best
    assert all(theory.walltime_factor(alpha, c, other) <= best for other in range(21))
    assert best >= theory.minimum_gain(alpha, c) - 1e-12


@pytest.mark.parametrize(("alpha", "c"), [(0.3, 0.3), (0.0, 0.0), (0.2, 0.9), (1.0, 1.0)])
def test_no_k_gains_unless_alpha_exceeds_c(alpha: float, c: float) -> None:
    assert leviathan(alpha, c).best_k(range(1, 65)) == 0
    assert leviathan(alpha, c).largest_k(range(1, 65)) == 0
    assert theory.minimum_gain(alpha, c) == 1.0


def test_the_best_k_of_a_perfect_free_draft_is_the_largest() -> None:
    assert leviathan(1.0, 0.0).best_k(range(1, 10)) == 9


@given(st.floats(0.05, 0.95), st.floats(0.3, 1.0), st.integers(1, 8))
def test_at_the_needed_alpha_a_loop_is_as_fast_as_ars(alpha: float, kept: float, k: int) -> None:
    cost = independent(alpha, kept)(k)
    found = alpha_needed(k, cost, kept)
    assert found == pytest.approx(alpha, abs=1e-6)
    assert WhatIf(independent(found or 0.0, kept), lambda k: cost).speedup(k) == pytest.approx(1.0)


def test_a_loop_dearer_than_all_that_it_can_emit_gains_with_no_alpha() -> None:
    assert alpha_needed(3, 4.5) is None
    assert alpha_needed(3, 0.9) == pytest.approx(0.0)


@given(st.floats(0.01, 1.0), st.integers(1, 8), st.floats(0.2, 0.9))
def test_at_the_allowed_c_a_loop_is_as_fast_as_ars(c: float, k: int, alpha: float) -> None:
    rest, tokens = 1.1, theory.expected_tokens(alpha, k)
    found = c_allowed(c, k, tokens, rest + k * c)
    if found is None:
        assert tokens <= rest + 1e-9
    else:
        assert tokens / (rest + k * found) == pytest.approx(1.0)

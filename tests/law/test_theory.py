"""The papers' formulae against the papers' own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.errors import UsageError
from spsbench.law import theory

# Leviathan et al. 2022, Table 2: (K, alpha) of the twelve measured pairs and the expected tokens
# per loop that their equation 1 gives for them.
TABLE_2 = [
    (7, 0.75, 3.600),
    (7, 0.80, 4.161),
    (7, 0.82, 4.420),
    (7, 0.62, 2.574),
    (5, 0.68, 2.816),
    (3, 0.71, 2.572),
    (5, 0.65, 2.642),
    (5, 0.73, 3.143),
    (3, 0.74, 2.693),
    (5, 0.53, 2.081),
    (3, 0.55, 2.019),
    (3, 0.56, 2.049),
]

alphas = st.floats(0.0, 1.0)
ratios = st.floats(0.0, 2.0)
lookaheads = st.integers(0, 12)


@pytest.mark.parametrize(("k", "alpha", "tokens"), TABLE_2)
def test_expected_tokens_of_leviathans_table_2(k: int, alpha: float, tokens: float) -> None:
    assert theory.expected_tokens(alpha, k) == pytest.approx(tokens, abs=6e-4)


def test_expected_tokens_at_the_ends() -> None:
    assert theory.expected_tokens(0.0, 7) == 1.0
    assert theory.expected_tokens(1.0, 7) == 8.0
    assert theory.expected_tokens(0.5, 0) == 1.0


@given(st.floats(0.0, 0.99), lookaheads)
def test_expected_tokens_is_the_closed_form(alpha: float, k: int) -> None:
    assert theory.expected_tokens(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


def test_expected_tokens_is_the_mean_of_simulated_loops() -> None:
    """100,000 loops at alpha .8, K 4: standard error .005, so .025 is five of them."""
    rng = np.random.default_rng(5)
    passed = rng.random((100_000, 4)) < 0.8
    lengths = 1 + np.cumprod(passed, axis=1).sum(axis=1)
    assert lengths.mean() == pytest.approx(theory.expected_tokens(0.8, 4), abs=0.025)


def test_walltime_factor_of_a_worked_case() -> None:
    # alpha .8, K 4: 3.3616 tokens in the time of 4 x .1 + 1 target steps.
    assert theory.walltime_factor(0.8, 0.1, 4) == pytest.approx(3.3616 / 1.4)
    assert theory.walltime_factor(0.8, 0.1, 0) == 1.0


def test_operations_factor_of_a_worked_case() -> None:
    assert theory.operations_factor(0.8, 0.05, 5) == pytest.approx((0.2 * 6.25) / (1 - 0.8**6))
    assert theory.operations_factor(1.0, 0.0, 5) == 1.0  # all K+1 verified tokens are kept


@given(alphas, ratios, lookaheads)
def test_more_is_computed_than_with_ars(alpha: float, c_operations: float, k: int) -> None:
    assert theory.operations_factor(alpha, c_operations, k) >= 1.0 - 1e-12


def test_minimum_gain() -> None:
    assert theory.minimum_gain(0.8, 0.05) == pytest.approx(1.8 / 1.05)


def test_chen_speedup_of_the_papers_own_times() -> None:
    """Chen et al. 2023: 14.1 ms target, 1.8 ms draft, K = 4; r' read off Figure 1 as .62 and .80."""
    assert theory.chen_speedup(0.62, 4, 14.1, 1.8) == pytest.approx(0.62 * 5 * 14.1 / 21.3)
    assert theory.chen_speedup(0.80, 4, 14.1, 1.8) == pytest.approx(2.648, abs=1e-3)
    assert theory.chen_speedup(1.0, 0, 14.1, 1.8) == 1.0


def test_chen_speedup_of_toyllms_gpt2_pair() -> None:
    """toyllm: gpt2-xl 73.3 ms, gpt2 11.9 ms, K = 4, r' .8125; it says about 2.46 (measured 2.12)."""
    assert theory.chen_speedup(0.8125, 4, 73.3, 11.9) == pytest.approx(2.463, abs=5e-4)


@given(alphas, st.floats(0.01, 1.0), st.integers(0, 9))
def test_chen_and_leviathan_agree_where_tests_are_independent(alpha: float, c: float, k: int) -> None:
    r_prime = theory.expected_tokens(alpha, k) / (k + 1)
    assert theory.chen_speedup(r_prime, k, 1.0, c) == pytest.approx(theory.walltime_factor(alpha, c, k))


@given(alphas, st.integers(1, 12))
def test_alpha_iid_undoes_expected_tokens(alpha: float, k: int) -> None:
    assert theory.alpha_iid(theory.expected_tokens(alpha, k), k) == pytest.approx(alpha, abs=1e-9)


def test_alpha_iid_at_the_ends() -> None:
    assert theory.alpha_iid(1.0, 4) == 0.0
    assert theory.alpha_iid(5.0, 4) == 1.0


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(UsageError, match="--alpha"):
        theory.expected_tokens(alpha, 4)


@pytest.mark.parametrize("c", [-0.1, math.inf, math.nan])
def test_c_outside_its_range_is_refused(c: float) -> None:
    with pytest.raises(UsageError, match="--c"):
        theory.walltime_factor(0.5, c, 4)


def test_nonsense_k_times_and_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="--k"):
        theory.expected_tokens(0.5, -1)
    with pytest.raises(UsageError, match="--k"):
        theory.alpha_iid(1.0, 0)
    with pytest.raises(UsageError, match="between 1 and K\\+1 = 5"):
        theory.alpha_iid(5.1, 4)
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        theory.chen_speedup(0.0, 4, 14.1, 1.8)
    with pytest.raises(UsageError, match="must be positive, got"):
        theory.chen_speedup(0.5, 4, 0.0, 1.8)

"""The G-test against scipy's, with pooled cells and tokens that the law rules out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import power_divergence

from spsbench.stats.evidence_stats import g_statistic, survival


def test_it_is_scipy_s() -> None:
    law = [0.5, 0.3, 0.2]
    g, freedom, outside = g_statistic(Counter({0: 60, 1: 25, 2: 15}), law)
    wanted = power_divergence([60, 25, 15], [50, 30, 20], lambda_="log-likelihood")
    assert (g, freedom, outside) == (pytest.approx(wanted.statistic), 2, 0)
    assert survival(g, freedom) == pytest.approx(wanted.pvalue)


def test_cells_of_few_expected_draws_are_pooled() -> None:
    g, freedom, _ = g_statistic(Counter({0: 90, 1: 4, 2: 3, 3: 3}), [0.88, 0.04, 0.04, 0.04])
    wanted = power_divergence([90, 10], [88, 12], lambda_="log-likelihood").statistic
    assert (g, freedom) == (pytest.approx(wanted), 1)


def test_tokens_that_the_law_rules_out_are_counted_apart() -> None:
    assert g_statistic(Counter({0: 10, 1: 10, 2: 3}), [0.5, 0.5, 0.0]) == (0.0, 1, 3)


def test_nothing_can_be_said_of_one_cell() -> None:
    assert g_statistic(Counter({0: 10}), [1.0, 0.0]) == (0.0, 0, 0)
    assert survival(0.0, 0) == 1.0


def test_counts_from_the_law_pass_and_others_fail() -> None:
    generator, law = np.random.default_rng(0), np.full(8, 1 / 8)
    right = Counter(generator.choice(8, 2000, p=law).tolist())
    wrong = Counter(generator.choice(8, 2000, p=[0.2, 0.05, *[0.125] * 6]).tolist())
    assert survival(*g_statistic(right, law.tolist())[:2]) > 1e-4
    assert survival(*g_statistic(wrong, law.tolist())[:2]) < 1e-4

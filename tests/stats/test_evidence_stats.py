"""Leakage finds what was planted, its bound covers, and e-values stay small under the truth."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import power_divergence
from support.simulated_evidence import rescored, run, samples, sequence

from spsbench.base.errors import SpsbenchError
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import draw, warp
from spsbench.law.evidence import BINS, MIXTURES, POWERS, sums_of
from spsbench.stats import evidence_stats
from spsbench.stats.evidence_stats import g_statistic, survival


@pytest.mark.parametrize("leakage", [0.0, 0.01, 0.05])
def test_a_planted_leakage_is_estimated(leakage: float) -> None:
    """20,000 drafted positions; 4 standard errors: false alarm below 1 in 10,000."""
    _, prompts = evidence_stats.per_prompt(run(60, leakage, seed=1, length=500))
    found = evidence_stats.leakage(prompts)
    assert found["standard_error"] < 0.015
    assert abs(found["estimate"] - leakage) < 4 * found["standard_error"]
    assert found["low"] < found["estimate"] < found["high"]
    assert max(0.0, found["estimate"]) + 1.6 * found["standard_error"] <= found["bound"]
    assert found["bound"] < found["high"] or found["estimate"] < 0


@pytest.mark.thorough_but("0.0-6")
@pytest.mark.parametrize(("leakage", "prompts"), [(0.0, 6), (0.05, 20)])
def test_interval_and_bound_cover_in_95_of_100_runs(leakage: float, prompts: int) -> None:
    """100 simulated runs.

    At 95% coverage fewer than 87 hits have odds below 1 in 1,000, and 100 of 100 (an interval that
    is too wide to be of use) odds of 1 in 170; for 6 prompts the wider of two intervals is taken. The bound
    is conservative near 0: a negative estimate does not lower it.
    """
    inside = below = 0
    for seed in range(100):
        found = evidence_stats.leakage(evidence_stats.per_prompt(run(prompts, leakage, seed=1000 + seed))[1])
        inside += found["low"] <= leakage <= found["high"]
        below += leakage <= found["bound"]
    assert 87 <= inside < 100 + (prompts < 20)
    assert below >= 87


def test_the_standard_error_is_the_models_or_that_between_prompts() -> None:
    """By hand: residuals -2, 0, -1, 3 give sqrt(4 / 3 x 14) / 40; variances of 9 give sqrt(36) / 40."""
    for var, error in ((0.01, math.sqrt(4 / 3 * 14) / 40), (9.0, 6 / 40)):
        scores = {"leak_score": [1.0, 3.0, 2.0, 6.0], "leak_information": 10.0, "leak_var": var}
        found = evidence_stats.leakage(pd.DataFrame(scores))
        assert found["standard_error"] == pytest.approx(error)
        assert found["low"] < found["estimate"] - 1.9 * error
        assert found["high"] > found["estimate"] + 1.9 * error


def test_the_bound_of_a_short_text_is_no_better_than_its_chances() -> None:
    """Target (1 - e, e), draft (0, 1): 30 positions without the draft's token allow a leakage of 8%.

    The exact bound is 1 - .05^(1/30) = 9.5%; the Wald bound would be 0.3%.
    """
    q = torch.tensor([[1 - 1e-6, 1e-6]]).expand(30, 2)
    p = torch.tensor([[0.0, 1.0]]).expand(30, 2)
    _, prompts = evidence_stats.per_prompt(
        samples([sums_of(torch.zeros(30, dtype=torch.long), q, p, torch.rand(30))])
    )
    found = evidence_stats.leakage(prompts)
    assert 0.08 < found["bound"] < 0.2
    assert found["bound"] < found["high"]


def nucleus_run(prompts: int, leakage: float, seed: int) -> pd.DataFrame:
    """Sums per prompt of 30 tokens each; nine rows in ten of a nucleus of .8 leave one token."""
    generator, params = torch.Generator().manual_seed(seed), SamplingParams(top_p=0.8)
    found: list[dict[str, float] | None] = []
    for _ in range(prompts):
        logits = 20 * torch.randn(30, 12, generator=generator)
        q, p = warp(logits, params), warp(logits + 6 * torch.randn(30, 12, generator=generator), params)
        tokens = draw((1 - leakage) * q + leakage * p, torch.rand(30, generator=generator))
        found.append(sums_of(tokens, q, p, torch.rand(30, generator=generator)))
    return evidence_stats.per_prompt(samples(found))[1]


@pytest.mark.thorough_but("0.03-6")
@pytest.mark.parametrize(("leakage", "prompts"), [(0.0, 6), (0.03, 6), (0.03, 25)])
def test_positions_of_one_token_narrow_the_bound_and_it_covers(leakage: float, prompts: int) -> None:
    """100 runs as above. Without those positions the bound of the truth is twice as wide and more."""
    below = narrower = 0
    for seed in range(100):
        table = nucleus_run(prompts, leakage, 2000 + seed)
        found, some = evidence_stats.leakage(table, everywhere=True), evidence_stats.leakage(table)
        assert some is not None
        below += leakage <= found["bound"]
        narrower += found["bound"] < 0.5 * some["bound"]
    assert below >= 87
    assert narrower >= 90 or leakage > 0


def test_certain_text_bounds_leakage_by_what_did_not_come() -> None:
    """Target (1, 0), draft (0, 1): 30 positions without the draft's token. Exactly: 1 - .05^(1/30) = 9.5%."""
    q, p = torch.tensor([[1.0, 0.0]]).expand(30, 2), torch.tensor([[0.0, 1.0]]).expand(30, 2)
    table = evidence_stats.per_prompt(
        samples([sums_of(torch.zeros(30, dtype=torch.long), q, p, torch.rand(30))])
    )[1]
    assert evidence_stats.leakage(table) is None
    found = evidence_stats.leakage(table, everywhere=True)
    assert found["estimate"] == 0
    assert 0.08 < found["bound"] < 0.2


def test_sequences_without_sums_over_all_positions_keep_counting() -> None:
    """A run from before, alone and continued by a newer version."""
    new = [sequence(200, 0.1, torch.Generator().manual_seed(seed)) for seed in range(4)]
    old = [{name: x for name, x in one.items() if not name.startswith("leak_all_")} for one in new]
    whole, before, mixed = (
        evidence_stats.per_prompt(samples(rows))[1] for rows in (new, old, [*old[:2], *new[2:]])
    )
    assert (
        evidence_stats.leakage(before, everywhere=True)
        == evidence_stats.leakage(before)
        == evidence_stats.leakage(whole)
    )
    assert evidence_stats.leakage(mixed, everywhere=True) == evidence_stats.leakage(whole, everywhere=True)


def test_the_truth_raises_no_alarm_and_a_leak_does() -> None:
    """A lossless run ever reaches an e-value of 1000 with odds below 1 in 1,000."""
    _, honest = evidence_stats.per_prompt(run(60, 0.0, seed=2, length=200))
    _, leaky = evidence_stats.per_prompt(run(60, 0.2, seed=3, length=200))
    assert evidence_stats.e_values(honest)["mean"] < 3
    found = evidence_stats.e_values(leaky)
    assert found["mean"] > 3
    assert max(found, key=found.__getitem__).startswith("mixture")
    names = {f"mixture_{x}" for x in MIXTURES} | {f"power_{x}" for x in POWERS}
    names |= {"no_residual", "lenience", "draft_favoured", "draft_shunned", "transform", "mean"}
    assert set(found) == names


def test_the_mean_e_value_is_the_average() -> None:
    _, prompts = evidence_stats.per_prompt(run(5, 0.0, seed=4))
    found = evidence_stats.e_values(prompts)
    mean = 10 ** found.pop("mean")
    assert mean == pytest.approx(np.mean([10**value for value in found.values()]))


def test_a_sampler_that_shuns_the_draft_is_caught_although_no_mixture_fits() -> None:
    """Leakage below 0: what a sampler does that corrects for the draft once too often."""
    generator = torch.Generator().manual_seed(5)
    _, prompts = evidence_stats.per_prompt(samples([sequence(300, 0.0, generator) for _ in range(40)]))
    shift = 6 * np.sqrt(prompts["leak_var"])
    prompts["leak_score"] -= shift
    found = evidence_stats.e_values(prompts)
    assert found["draft_shunned"] > 3
    assert found["draft_favoured"] < 0
    leak = evidence_stats.leakage(prompts)
    assert leak["bound"] > 1.6 * leak["standard_error"]
    assert leak["high"] < 0


def test_the_bets_on_direction_are_fair() -> None:
    """Exactly: the expectation over one position with score +2 (odds 1/5) or -1/2 is at most 1."""
    for sign in (1.0, -1.0):
        variance = 0.2 * 4 + 0.8 * 0.25
        mean = sum(
            odds * math.exp(evidence_stats._log_mean_e_value(sign * score, variance))
            for odds, score in ((0.2, 2.0), (0.8, -0.5))
        )
        assert mean <= 1.0


def test_the_transforms_bet_is_fair_and_sees_a_constant_uniform() -> None:
    """Exactly, over both outcomes of a first position in two cells, and on a lopsided count."""
    one, other = (
        math.exp(evidence_stats._log_bayes_factor(np.array(cells))) for cells in ([1.0, 0.0], [0.0, 1.0])
    )
    assert 0.5 * one + 0.5 * other == pytest.approx(1.0)
    two = [[2.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 2.0]]
    assert np.mean(
        [math.exp(evidence_stats._log_bayes_factor(np.array(cells))) for cells in two]
    ) == pytest.approx(1.0)
    assert evidence_stats._log_bayes_factor(np.array([100.0] + [10.0] * 9)) > math.log(1000)


def test_log_score_sees_a_sharper_sampler_between_prompts_and_by_the_model() -> None:
    for n, variance in ((40, "between prompts"), (6, "of the model")):
        _, honest = evidence_stats.per_prompt(run(n, 0.0, seed=6, length=200))
        _, sharp = evidence_stats.per_prompt(run(n, 0.0, seed=7, length=200, power=1.3))
        calm, found = evidence_stats.log_score(honest), evidence_stats.log_score(sharp)
        assert calm is not None
        assert found["variance"] == variance
        assert abs(calm["z"]) < 4
        assert found["z"] > 5
        assert found["p_value"] < 1e-4


def test_transform_needs_positions_and_sees_lopsided_cells() -> None:
    prompts = pd.DataFrame([{f"transform_{i}": 4.0 for i in range(BINS)}])
    assert evidence_stats.transform(prompts) is None
    prompts = pd.DataFrame([{f"transform_{i}": 10.0 + 90.0 * (i == 9) for i in range(BINS)}])
    found = evidence_stats.transform(prompts)
    assert found["p_value"] < 1e-6
    assert found["cells"] == [10.0] * 9 + [100.0]


def test_the_two_kinds_of_evidence_are_kept_apart() -> None:
    frame = rescored(run(10, 0.0, seed=8), every=5)
    own, independent = (evidence_stats.per_prompt(frame, prefix) for prefix in ("", "rescored_"))
    assert (len(own[0]), len(independent[0])) == (10, 2)
    assert "positions" in independent[1]
    assert independent[1].loc["e5", "leak_score"] == own[1].loc["e5", "leak_score"]


def test_samples_of_a_prompt_are_one_unit_and_missing_evidence_is_left_out() -> None:
    generator = torch.Generator().manual_seed(9)
    frame = samples([sequence(30, 0.0, generator), sequence(30, 0.0, generator, drafted=False), None, {}])
    frame.loc[:1, "example_id"] = "same"
    frame.at[3, "losslessness"] = {"positions": None, "rescored_positions": float("nan")}
    carried, prompts = evidence_stats.per_prompt(frame)
    assert len(carried) == 2
    assert prompts.loc["same", "positions"] == 60
    assert evidence_stats.per_prompt(frame, "rescored_")[0].empty
    assert evidence_stats.per_prompt(frame.drop(columns="losslessness"))[0].empty


def test_without_a_draft_there_is_no_leakage() -> None:
    generator = torch.Generator().manual_seed(10)
    _, prompts = evidence_stats.per_prompt(samples([sequence(30, 0.0, generator, drafted=False)]))
    assert evidence_stats.leakage(prompts) is None
    assert set(evidence_stats.e_values(prompts)) == {"power_0.8", "power_1.25", "transform", "mean"}


def test_a_sum_that_is_missing_is_damage_and_no_zero() -> None:
    generator = torch.Generator().manual_seed(11)
    _, prompts = evidence_stats.per_prompt(samples([sequence(30, 0.1, generator)]))
    for name in ("log_score", "leak_score"):
        with pytest.raises(SpsbenchError, match=f"lacks {name}"):
            (evidence_stats.log_score if name == "log_score" else evidence_stats.leakage)(
                prompts.drop(columns=name)
            )


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

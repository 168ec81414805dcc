"""Parity: verdicts with the power and the false alarms that they claim, and nothing invented."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from spsbench.stats.bootstrap import ratio_of_sums
from spsbench.stats.messages import evidence
from spsbench.stats.parity import advantage, compare, minimum_detectable, parity, prompts_needed

Make = Callable[..., pd.DataFrame]


def _scores(values: Any) -> pd.Series[float]:
    return pd.Series(np.asarray(values, dtype=np.float64), index=[f"e{i}" for i in range(len(values))])


def _pair(n: int, shift: float, deviation: float, rng: np.random.Generator) -> tuple[Any, Any]:
    ars = rng.normal(0.3, 0.1, n)
    return _scores(ars), _scores(ars + shift + rng.normal(0.0, deviation, n))


def test_the_margin_is_a_share_of_what_is_at_stake() -> None:
    rng = np.random.default_rng(1)
    ars, sps = _pair(50, 0.0, 0.05, rng)
    found = compare(ars, sps, ars - 0.2)
    assert found["margin"] == pytest.approx(0.01)
    assert found["margin_rule"] == "5% of the target-draft gap"
    assert found["normalised_difference"] == pytest.approx(-found["difference"] / 0.2)


@pytest.mark.parametrize(
    ("draft_shift", "reason"), [(None, "no draft-only arm"), (0.1, "the target is no better")]
)
def test_without_a_gap_the_default_margin_is_named_as_such(draft_shift: float | None, reason: str) -> None:
    ars, sps = _pair(50, 0.0, 0.05, np.random.default_rng(1))
    found = compare(ars, sps, None if draft_shift is None else ars + draft_shift, 0.02)
    assert found["margin"] == 0.02
    assert found["margin_rule"].startswith(f"0.02 absolute: {reason}")
    assert found["normalised_difference"] is None
    assert compare(ars, sps, None)["margin"] == 0.01


def test_where_lower_is_better_the_gap_turns() -> None:
    ars, sps = _pair(50, 0.02, 0.05, np.random.default_rng(1))
    found = compare(ars, sps, ars + 0.2, higher_is_better=False)
    assert found["margin"] == pytest.approx(0.01)
    assert found["margin_rule"] == "5% of the target-draft gap"
    assert found["normalised_difference"] == pytest.approx(found["difference"] / 0.2)
    assert compare(ars, sps, ars - 0.2, higher_is_better=False)["margin_rule"].startswith("0.01 absolute")


def test_a_metric_brings_its_own_margin(make_samples: Make) -> None:
    by_arm = {
        f"{method}-nucleus": make_samples(
            [1.0] * 4, [9] * 4, method=method, scores=[{"distance": value * n} for n in range(4)]
        )
        for method, value in (("ars", 1.0), ("sps", 1.1))
    }
    kinds = {"distance": {"margin": 3.0, "higher_is_better": False}}
    found = parity(by_arm, _rows(("ars-nucleus", "ars"), ("sps-nucleus", "sps")), "distance", kinds)
    assert found["comparisons"][0]["margin"] == 3.0


def test_the_three_verdicts() -> None:
    rng = np.random.default_rng(2)
    assert compare(*_pair(2_000, 0.0, 0.1, rng), None)["verdict"] == "equivalent"
    different = compare(*_pair(2_000, 0.05, 0.1, rng), None)
    assert different["verdict"] == "different"
    assert different["low"] > 0
    weak = compare(*_pair(40, 0.0, 0.1, rng), None)
    assert weak["verdict"] == "inconclusive"
    assert weak["low"] < weak["difference"] < weak["high"]
    assert weak["minimum_detectable_difference"] > weak["margin"]
    assert weak["prompts_needed"] > 500


@pytest.mark.parametrize(("deviation", "prompts"), [(0.012, 6), (0.02, 13), (0.1, 272)])
def test_prompts_needed_gives_its_power_and_the_edge_its_level(deviation: float, prompts: int) -> None:
    """2,000 simulated runs of the stated size: equivalent in 90% or more if there is no difference, with a
    prompt fewer in less, and in 5% if the truth lies on the margin. 4 standard errors."""
    from statsmodels.stats.weightstats import ttost_paired

    rng = np.random.default_rng(3)
    found = {}
    for n in (prompts - 1, prompts):
        for shift in (0.0, 0.02):
            drawn = rng.normal(shift, deviation, (n, 2_000))
            found[n, shift] = np.mean(ttost_paired(drawn, np.zeros_like(drawn), -0.02, 0.02)[0] < 0.05)
    assert prompts_needed(deviation, 0.02) == prompts
    assert found[prompts, 0.0] > 0.9 - 4 * 0.0067
    assert found[prompts - 1, 0.0] < 0.9 + 4 * 0.0067
    assert found[prompts, 0.02] < 0.05 + 4 * 0.005


def test_the_verdict_takes_both_one_sided_tests_at_their_level() -> None:
    """2,000 prompts whose mean lies 1.5 standard errors within the margin: p = .067 is not .05."""
    difference = np.tile([-1.0, 1.0], 1_000)
    error = difference.std(ddof=1) / math.sqrt(2_000)
    for errors, verdict in ((1.5, "inconclusive"), (1.8, "equivalent")):
        shifted = _scores(difference + (3.2 - errors) * error)
        found = compare(_scores(np.zeros(2_000)), shifted, None, 3.2 * error)
        assert found["verdict"] == verdict
        assert found["tost_p_value"] == pytest.approx(norm.sf(errors), rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 8, 40])
def test_the_minimum_detectable_difference_is_found_in_nine_of_ten_runs(n: int) -> None:
    """2,000 simulated runs with exactly that difference: 90% reject by the t-test, 4 standard errors."""
    from scipy.stats import ttest_1samp

    drawn = np.random.default_rng(4).normal(minimum_detectable(0.1, n), 0.1, (n, 2_000))
    assert np.mean(ttest_1samp(drawn, 0.0).pvalue < 0.05) == pytest.approx(0.9, abs=4 * 0.0067)


def test_a_lossless_sampler_is_seldom_called_different() -> None:
    """60 runs without a difference: about 3 by the interval's odds; over 11 has odds of 1 in 10,000."""
    rng = np.random.default_rng(5)
    verdicts = [compare(*_pair(40, 0.0, 0.1, rng), None)["verdict"] for _ in range(60)]
    assert verdicts.count("different") <= 11


@pytest.mark.parametrize(
    ("ars", "sps", "reason"),
    [
        ([], [], "0 prompts"),
        ([0.3], [0.4], "1 prompt: no variance"),
        ([0.3, 0.4, 0.5], [0.3, 0.4, 0.5], "the same score on every prompt"),
        ([0.0, 0.25, 0.5], [0.5, 0.75, 1.0], "the same difference on every prompt"),
    ],
)
def test_what_cannot_be_judged_is_null_with_a_reason(ars: list[float], sps: list[float], reason: str) -> None:
    found = compare(_scores(ars), _scores(sps), None)
    assert found["verdict"] is None
    assert found["reason"].startswith(reason)
    assert (found["low"], found["high"], found["tost_p_value"]) == (None, None, None)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_handful_of_prompts_has_numbers_but_no_claim(n: int) -> None:
    found = compare(*_pair(n, 0.0, 0.1, np.random.default_rng(n)), None)
    json.dumps(found, allow_nan=False)
    assert found["verdict"] in ("inconclusive", "different")
    assert found["minimum_detectable_difference"] > 0.05
    assert found["prompts_needed"] is None  # three prompts do not know their spread


def test_only_prompts_that_all_arms_have_count() -> None:
    ars, sps = _scores([0.1, 0.2, 0.3, 0.4]), _scores([0.1, 0.3, 0.3])
    found = compare(ars, sps, _scores([0.0, 0.1]))
    assert found["prompts"] == 2
    assert found["difference"] == pytest.approx(0.05)


def test_the_advantage_of_the_target_has_a_paired_interval() -> None:
    rng = np.random.default_rng(6)
    target = _scores(rng.uniform(0.2, 0.4, 60))
    found = advantage(target, _scores(target / 3 + rng.normal(0.0, 0.005, 60)))
    assert found["ratio"] == pytest.approx(3.0, rel=0.03)
    assert 2.9 < found["low"] < found["ratio"] < found["high"] < 3.1
    assert advantage(target, target * 0.0)["reason"] == "the draft alone scores 0"
    assert advantage(target, target.iloc[:0])["reason"] == "no common prompt"
    exact = advantage(_scores([0.2, 0.4]), _scores([0.1, 0.2]))
    assert (exact["ratio"], exact["low"]) == (pytest.approx(2.0), None)
    assert exact["reason"] == evidence.TOO_LITTLE_VARIATION


def test_a_ratio_to_a_draft_that_may_score_nothing_has_no_interval() -> None:
    """One prompt in four has all that the draft scores: without it there is no ratio."""
    target, draft = _scores([0.2, 0.3, 0.4, 0.5]), _scores([0.1, 0.0, 0.0, 0.0])
    counts = (pd.DataFrame({"sum": scores, "count": 1.0}) for scores in (target, draft))
    for found in (advantage(target, draft), advantage(*counts, ratio_of_sums)):
        assert (found["ratio"], found["low"]) == (pytest.approx(14.0), None)
        assert found["reason"] == evidence.TOO_LITTLE_VARIATION


def _rows(*arms: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"arm": arm, "method": method, "sampling": arm.rpartition("-")[2]} for arm, method in arms]


def test_a_run_is_compared_within_its_samplings(make_samples: Make) -> None:
    rng = np.random.default_rng(7)

    def scored(method: str, sampling: str, mean: float) -> pd.DataFrame:
        scores = [{"rouge1": 0.0, "rouge2": float(value)} for value in rng.normal(mean, 0.05, 30)]
        return make_samples([1.0] * 30, [9] * 30, method=method, sampling=sampling, scores=scores)

    arms = {
        "ars-nucleus": scored("ars", "nucleus", 0.3),
        "sps-k4-nucleus": scored("sps", "nucleus", 0.3),
        "draft-nucleus": scored("draft", "nucleus", 0.1),
        "ars-greedy": scored("ars", "greedy", 0.4),
        "sps-k4-greedy": scored("sps", "greedy", 0.4),
    }
    found = parity(arms, _rows(*((name, name.partition("-")[0]) for name in arms)), "rouge2")
    assert found is not None
    json.dumps(found, allow_nan=False)
    assert found["metric"] == "rouge2"
    nucleus, greedy = found["comparisons"]
    assert (nucleus["arm"], nucleus["baseline"]) == ("sps-k4-nucleus", "ars-nucleus")
    assert nucleus["margin"] == pytest.approx(0.01, rel=0.2)
    assert greedy["margin_rule"].startswith("0.01 absolute")
    assert nucleus["solved"] is None
    (best,) = found["target_over_draft"]
    assert best["sampling"] == "nucleus"
    assert best["ratio"] == pytest.approx(3.0, rel=0.3)


def test_code_is_clustered_by_problem_and_solved_problems_meet_mcnemar(make_samples: Make) -> None:
    """Ten problems of four samples: ArS solves e0..e4, SpS e4..e9; the mean per problem is the unit."""
    solved = {"ars": range(5), "sps": range(4, 10)}
    frames = {}
    for method in ("ars", "sps"):
        scores = [{"passed": float(i // 4 in solved[method] and i % 4 == 0)} for i in range(40)]
        frames[f"{method}-nucleus"] = make_samples(
            [1.0] * 40, [9] * 40, method=method, scores=scores, samples_per_prompt=4
        )
    found = parity(frames, _rows(("ars-nucleus", "ars"), ("sps-nucleus", "sps")), "pass@1")
    (comparison,) = found["comparisons"]
    assert found["metric"] == "pass@1"
    assert (comparison["prompts"], comparison["margin"]) == (10, 0.02)
    assert comparison["baseline_mean"] == pytest.approx(5 / 40)
    counts = {"both": 1, "only_ars": 4, "only_sps": 5, "neither": 0}
    assert comparison["solved"] == counts | {"p_value": pytest.approx(1.0), "reason": None}


def test_no_scores_have_no_parity(make_samples: Make) -> None:
    frames = {"ars-nucleus": make_samples([1.0], [9], scores=[{}])}
    assert parity(frames, _rows(("ars-nucleus", "ars"))) is None
    assert parity({}, []) is None

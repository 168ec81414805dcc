"""The speedup: its estimand, its pairing and what its interval covers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from spsbench.base.records import Speedup
from spsbench.stats.speedup import (
    PairedTimes,
    drifted,
    finished,
    halves,
    pair,
    share_slower,
    speedup_over_prompts,
)

Make = Callable[..., pd.DataFrame]


def _times(truth: float, n: int, rng: np.random.Generator) -> PairedTimes:
    """A run with the given true ratio: prompts differ in length, difficulty and machine state."""
    base_tokens, arm_tokens = rng.integers(20, 120, n), rng.integers(20, 120, n)
    machine = rng.lognormal(0.0, 0.10, n)  # a prompt's own slowness, shared by its two arms
    base = 0.014 * base_tokens * machine
    noise = rng.lognormal(0.0, 0.25, n) / np.exp(0.25**2 / 2)
    return PairedTimes(
        base, base_tokens * 1.0, 0.014 / truth * arm_tokens * machine * noise, arm_tokens * 1.0
    )


def test_the_estimand_is_the_ratio_of_pooled_times_per_token(make_samples: Make) -> None:
    baseline = make_samples([1.0, 3.0], [10, 30])  # .1 s per token
    arm = make_samples([0.4, 1.0], [20, 10], method="sps", k=4)  # 1.4 s for 30 tokens
    result = speedup_over_prompts(pair(baseline, arm))
    assert result.ratio == pytest.approx(0.1 / (1.4 / 30))


def test_end_to_end_counts_both_prefills(make_samples: Make) -> None:
    baseline = make_samples([1.0, 1.0], [10, 10], prefill_s=0.5)
    arm = make_samples([0.5, 0.5], [10, 10], method="sps", k=4, prefill_s=0.7)
    assert pair(baseline, arm).ratio() == pytest.approx(2.0)
    assert pair(baseline, arm, prefill=True).ratio() == pytest.approx(1.5 / 1.2)


def test_only_sequences_finished_in_both_arms_count(make_samples: Make) -> None:
    baseline = make_samples([1.0] * 4, [10] * 4)
    arm = make_samples([0.5, 9.0, 0.5, 9.0], [10] * 4, method="sps", k=4)
    arm.loc[1, ["finish_reason", "error"]] = ["error", "out of memory"]
    baseline.loc[3, ["finish_reason", "error"]] = ["error", "out of memory"]
    times = pair(baseline, arm)
    assert len(times) == 2
    assert times.ratio() == pytest.approx(2.0)
    assert len(finished(arm)) == 3


def test_all_samples_of_a_prompt_are_one_unit(make_samples: Make) -> None:
    baseline = make_samples([1.0] * 6, [10] * 6, samples_per_prompt=3)
    arm = make_samples([0.5] * 6, [10] * 6, method="sps", k=4, samples_per_prompt=3)
    times = pair(baseline, arm)
    assert times.baseline_s.tolist() == [3.0, 3.0]
    assert times.arm_tokens.tolist() == [30.0, 30.0]


def test_the_order_of_an_arms_rows_changes_nothing(make_samples: Make) -> None:
    """Rows of equal arms are paired by their place, others by their keys."""
    baseline = make_samples([1.0, 2.0, 3.0], [10, 20, 30])
    arm = make_samples([0.5, 0.7, 0.9], [11, 22, 33], method="sps", k=4)
    expected = [column.tolist() for column in pair(baseline, arm).columns()]
    assert expected[2] == [0.5, 0.7, 0.9]
    for rows in ([2, 1, 0], [1, 2, 0]):
        assert [column.tolist() for column in pair(baseline, arm.iloc[rows]).columns()] == expected
    fewer = [column.tolist() for column in pair(baseline, arm.iloc[[2, 0]]).columns()]
    assert fewer == [[first, third] for first, _, third in expected]


def test_prompts_come_in_the_order_of_measurement(make_samples: Make) -> None:
    """Rows come in that order; ``order`` is the place among the arms of a prompt and must not sort them."""
    baseline = make_samples([1.0, 2.0, 3.0], [10, 10, 10]).iloc[[1, 2, 0]]
    arm = make_samples([1.0, 2.0, 3.0], [10, 10, 10], method="sps", k=4)
    baseline["order"], arm["order"] = [1, 0, 1], [0, 1, 0]
    assert pair(baseline, arm).arm_s.tolist() == [2.0, 3.0, 1.0]


def test_no_common_prompt_has_no_speedup(make_samples: Make) -> None:
    baseline, arm = make_samples([1.0], [10]), make_samples([1.0], [10], method="sps", k=4)
    arm["example_id"] = "other"
    times = pair(baseline, arm)
    assert speedup_over_prompts(times) is None
    assert share_slower(times) is None
    assert halves(times) == (None, None)


def test_one_prompt_and_constant_data_have_a_ratio_without_an_interval(make_samples: Make) -> None:
    for n in (1, 6):
        baseline = make_samples([0.7] * n, [9] * n)
        arm = make_samples([0.3] * n, [9] * n, method="sps", k=4)
        result = speedup_over_prompts(pair(baseline, arm))
        assert result == Speedup(pytest.approx(0.7 / 0.3), None, None)


def test_the_interval_is_the_same_each_time_and_holds_its_estimate() -> None:
    times = _times(1.9, 40, np.random.default_rng(3))
    first, second = speedup_over_prompts(times), speedup_over_prompts(times)
    assert first == second
    assert first.low < first.ratio < first.high


def test_each_arm_is_divided_by_its_own_tokens() -> None:
    """ArS has one pace and SpS 5% of noise, whatever the lengths: the interval is as narrow as that noise."""
    rng = np.random.default_rng(4)
    base, arm = rng.integers(20, 120, (2, 30)) * 1.0
    found = speedup_over_prompts(
        PairedTimes(0.1 * base, base, 0.05 * arm * rng.lognormal(0.0, 0.05, 30), arm)
    )
    assert 1.9 < found.low < found.ratio < found.high < 2.1


def test_pairing_takes_the_machines_state_out_of_the_interval() -> None:
    """Slowness shared by the two arms of a prompt cancels: halving the pairs' tie widens it."""
    rng = np.random.default_rng(8)
    machine = rng.lognormal(0.0, 0.5, 60)
    tokens = np.full(60, 50.0)
    paired = PairedTimes(machine, tokens, machine / 2 * rng.lognormal(0.0, 0.05, 60), tokens)
    torn = PairedTimes(paired.baseline_s, tokens, np.roll(paired.arm_s, 1), tokens)
    tight, wide = speedup_over_prompts(paired), speedup_over_prompts(torn)
    assert tight.ratio == pytest.approx(wide.ratio)
    assert (tight.high or 0) - (tight.low or 9) < 0.2 * ((wide.high or 9) - (wide.low or 0))


def test_halves_and_drift() -> None:
    """Arm slows from 2x to 1x halfway: the halves say so and leave the interval of the whole."""
    rng = np.random.default_rng(1)
    ones = np.ones(200)
    arm_s = np.repeat([0.5, 1.0], 100) * rng.lognormal(0.0, 0.05, 200)
    times = PairedTimes(ones, ones, arm_s, ones)
    whole = speedup_over_prompts(times)
    assert whole is not None
    assert halves(times) == (pytest.approx(2.0, rel=0.02), pytest.approx(1.0, rel=0.02))
    assert drifted(times, whole)


def test_a_steady_run_seldom_counts_as_drifting() -> None:
    """100 steady runs: about 5 alarms by design; more than 15 has odds below 1 in 10,000."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(100):
        times = _times(1.5, 80, rng)
        whole = speedup_over_prompts(times)
        assert whole is not None
        alarms += drifted(times, whole)
    assert alarms <= 15


def test_without_an_interval_nothing_drifts() -> None:
    one = np.ones(1)
    assert not drifted(PairedTimes(one, one, one, one), Speedup(1.0, None, None))


def test_share_slower_counts_prompts_below_their_own_baseline() -> None:
    tokens = np.array([10.0, 10.0, 20.0, 10.0])
    times = PairedTimes(np.ones(4), np.full(4, 10.0), np.array([0.5, 1.2, 1.2, 1.0]), tokens)
    assert share_slower(times) == 0.25  # 1.2 s for 20 tokens is no slower, nor is a tie

"""Every name of acceptance, against the i.i.d. example and against loops counted by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from spsbench.base.errors import SpsbenchError
from spsbench.stats.acceptance import PER_POSITION, acceptance_by_name, disagreement, share_of_optimum
from spsbench.stats.messages import LEGEND


def _exact_iid_loops(make_loops: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Alpha 4/5, K = 4 as exact frequencies: 5^4 loops, one per equally likely outcome of four tests."""
    outcomes = itertools.product(range(5), repeat=4)
    passed = np.array([[face < 4 for face in outcome] for outcome in outcomes])
    return make_loops(np.cumprod(passed, axis=1).sum(axis=1))


def test_the_iid_example_at_alpha_080_and_k_4(make_loops: Callable[..., pd.DataFrame]) -> None:
    names = acceptance_by_name(_exact_iid_loops(make_loops), 4)
    assert names["r_prime"] == pytest.approx(0.67232)
    assert names["mean_acceptance_length"] == pytest.approx(3.3616)
    assert names["draft_acceptance_rate"] == pytest.approx(0.5904)
    assert names["acceptance_per_position"] == pytest.approx([0.8, 0.64, 0.512, 0.4096])
    assert names["conditional_acceptance"] == pytest.approx([0.8, 0.8, 0.8, 0.8])
    for alpha in ("alpha_tested", "alpha_beta", "alpha_iid"):
        assert names[alpha] == pytest.approx(0.8)
    assert names["tokens_per_target_call"] == pytest.approx(3.3616)
    assert names["alpha_leviathan"] is None


def test_hand_made_loops(make_loops: Callable[..., pd.DataFrame]) -> None:
    """K = 3. Loops accept 3, 1, 0 and, of two drafted, 2; the last one is cut by one token."""
    loops = make_loops([3, 1, 0, 2], k=3)
    loops["drafted"] = [3, 3, 3, 2]
    loops["tested"] = [3, 2, 1, 2]
    loops["beta_sum"] = [2.4, 1.2, 0.3, 1.5]
    loops["emitted"] = [4, 2, 1, 2]
    names = acceptance_by_name(loops, 3)
    assert names["r_prime"] == pytest.approx(10 / 16)
    assert names["mean_acceptance_length"] == pytest.approx(2.5)
    assert names["draft_acceptance_rate"] == pytest.approx(6 / 11)  # drafted < K keeps its own
    assert names["acceptance_per_position"] == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert names["conditional_acceptance"] == pytest.approx([3 / 4, 2 / 3, 1 / 1])
    assert names["alpha_tested"] == pytest.approx(6 / 8)
    assert names["alpha_beta"] == pytest.approx(5.4 / 8)
    assert names["tokens_per_target_call"] == pytest.approx(9 / 4)  # the only name after truncation


def test_macro_is_the_mean_over_prompts(make_loops: Callable[..., pd.DataFrame]) -> None:
    """Prompt a: one loop that accepts 4; prompt b: three loops that accept 0."""
    names = acceptance_by_name(make_loops([4, 0, 0, 0], prompts=["a", "b", "b", "b"]), 4)
    assert names["mean_acceptance_length"] == pytest.approx(2.0)
    assert names["macro"]["mean_acceptance_length"] == pytest.approx(3.0)
    assert names["macro"]["draft_acceptance_rate"] == pytest.approx(0.5)
    assert names["macro"]["alpha_tested"] == pytest.approx(0.5)
    assert names["macro"]["acceptance_per_position"] == pytest.approx([0.5] * 4)
    # Prompt b never reached position 2: that name exists for prompt a alone.
    assert names["macro"]["conditional_acceptance"] == pytest.approx([0.5, 1.0, 1.0, 1.0])


def test_every_name_has_its_legend_and_appears_twice(make_loops: Callable[..., pd.DataFrame]) -> None:
    names = acceptance_by_name(make_loops([1, 2]), 4)
    assert set(names) - {"macro"} == set(names["macro"]) == set(LEGEND)
    assert set(PER_POSITION) < set(LEGEND)


def test_extremes_have_finite_or_no_values(make_loops: Callable[..., pd.DataFrame]) -> None:
    none_accepted = acceptance_by_name(make_loops([0, 0], alpha=0.0), 4)
    assert none_accepted["alpha_iid"] == 0.0
    assert none_accepted["conditional_acceptance"] == [0.0, None, None, None]
    all_accepted = acceptance_by_name(make_loops([4, 4], alpha=1.0), 4)
    assert all_accepted["alpha_iid"] == all_accepted["r_prime"] == 1.0


def test_nothing_drafted_gives_no_rate(make_loops: Callable[..., pd.DataFrame]) -> None:
    loops = make_loops([0, 0])
    loops[["drafted", "tested", "beta_sum"]] = 0
    names = acceptance_by_name(loops, 4)
    assert names["draft_acceptance_rate"] is None
    assert names["alpha_beta"] is None
    assert names["mean_acceptance_length"] == 1.0


def test_what_an_engine_cannot_see_is_none_and_the_rest_stays(
    make_loops: Callable[..., pd.DataFrame],
) -> None:
    loops = make_loops([3, 1])
    loops["tested"] = loops["beta_sum"] = None
    names = acceptance_by_name(loops, 4)
    assert names["alpha_beta"] is None
    assert names["alpha_tested"] is None
    assert names["conditional_acceptance"] == [None] * 4
    assert names["mean_acceptance_length"] == 3.0


def test_no_loops_and_k_0_have_no_acceptance(make_loops: Callable[..., pd.DataFrame]) -> None:
    assert acceptance_by_name(make_loops([]), 4) is None
    assert acceptance_by_name(make_loops([0, 0]), 0) is None


def test_more_accepted_than_drafted_can_be_is_an_error(make_loops: Callable[..., pd.DataFrame]) -> None:
    with pytest.raises(SpsbenchError, match="K = 4"):
        acceptance_by_name(make_loops([5]), 4)


def test_disagreement_is_small_for_a_faithful_sampler_and_large_for_another(
    make_loops: Callable[..., pd.DataFrame], simulate_accepted: Callable[[float, int, int, int], np.ndarray]
) -> None:
    """20,000 loops: a score beyond 4 has odds of 6e-5 when acceptance follows beta = .8; seed fixed."""
    accepted = simulate_accepted(0.8, 4, 20_000, 11)
    faithful = disagreement(make_loops(accepted, alpha=0.8))
    broken = disagreement(make_loops(accepted, alpha=0.75))
    assert abs(faithful) < 4
    assert broken > 20


def test_disagreement_of_a_greedy_arm_is_zero_despite_rounding(
    make_loops: Callable[..., pd.DataFrame],
) -> None:
    loops = make_loops([4, 4, 4], alpha=1.0)
    loops["beta_sum"] -= 1e-6
    score = disagreement(loops)
    assert abs(score) < 0.01
    loops["beta_sum"] = None
    assert disagreement(loops) is None


def test_the_share_of_the_optimum_is_a_ratio_of_sums(make_loops: Callable[..., pd.DataFrame]) -> None:
    """Prompts a and b: 5 of 6 and 1 of 2 tokens."""
    loops = make_loops([4, 1, 1], prompts=["a", "a", "b"])
    assert share_of_optimum(loops) is None  # of a run from before
    share = share_of_optimum(loops.assign(optimal_accepted=[3.5, 2.5, 2.0]))
    assert share is not None
    assert share["low"] is not None
    assert share["high"] is not None
    assert share["ratio"] == pytest.approx(6 / 8)
    assert share["low"] < 6 / 8 < share["high"]


def test_a_share_of_what_is_not_known_or_0_is_none(make_loops: Callable[..., pd.DataFrame]) -> None:
    loops = make_loops([0, 2], prompts=["a", "b"])
    assert share_of_optimum(loops.assign(optimal_accepted=[1.0, None])) is None
    assert share_of_optimum(loops.assign(optimal_accepted=0.0)) is None
    assert share_of_optimum(loops.iloc[:0].assign(optimal_accepted=0.0)) is None
    exact = share_of_optimum(make_loops([2, 2], prompts=["a", "b"]).assign(optimal_accepted=2.0))
    assert exact == {"ratio": 1.0, "low": None, "high": None}


@pytest.mark.thorough
def test_a_million_loops_are_all_counted(
    make_loops: Callable[..., pd.DataFrame], simulate_accepted: Callable[[float, int, int, int], np.ndarray]
) -> None:
    """Standard error of the length is .0016 (deviation 1.6), so .01 is six of them."""
    n = 1_000_000
    prompts = np.char.add("e", (np.arange(n) // 25).astype(str))
    names = acceptance_by_name(make_loops(simulate_accepted(0.8, 4, n, 2), prompts=prompts), 4)
    assert names["mean_acceptance_length"] == pytest.approx(3.3616, abs=0.01)
    assert names["macro"]["mean_acceptance_length"] == pytest.approx(names["mean_acceptance_length"])

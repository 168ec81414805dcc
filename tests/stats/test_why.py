from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_sweep import DRAFT_S, TARGET_S, sweep
from support.summarised import summarise

from spsbench.stats.predict.factors import explain
from spsbench.stats.speedup import ArmSums

POSITIVE = st.floats(1e-6, 1e3)


def _row(k: int = 4) -> dict[str, Any]:
    return {
        "arm": f"sps-k{k}",
        "method": "sps",
        "k": k,
        "engine": "eager",
        "sampling": "nucleus",
        "baseline": "ars",
    }


@st.composite
def _sums(draw: st.DrawFn, k: int) -> ArmSums:
    """Whatever a frame could add up to, phases seen or not."""
    loops = draw(st.integers(1, 10_000))
    accepted = draw(st.integers(0, k * loops))
    tested = max(draw(st.integers(1, max(1, k * loops))), accepted)
    beta = draw(st.one_of(st.just(math.nan), st.floats(0, float(tested))))
    phases = [draw(st.one_of(POSITIVE, st.just(0.0), st.just(math.nan))) for _ in range(3)]
    tokens = draw(st.integers(1, 100_000))
    return ArmSums(draw(POSITIVE), tokens, loops, tested, accepted, tested, beta, *phases)


@pytest.mark.thorough
@given(data=st.data(), k=st.integers(1, 12))
@settings(max_examples=300)
def test_the_product_is_the_measured_speedup(data: st.DataObject, k: int) -> None:
    ars, sps = data.draw(_sums(1)), data.draw(_sums(k))
    entry = explain(_row(k), ars, sps)
    measured = (ars.seconds / ars.tokens) / (sps.seconds / sps.tokens)
    product = (k + 1) * math.prod(factor["factor"] for factor in entry["factors"])
    assert product == pytest.approx(measured, rel=1e-9)
    assert entry["factors"][-1]["running"] == pytest.approx(measured, rel=1e-9)
    assert entry["speedup"] == pytest.approx(measured, rel=1e-12)


def test_in_a_whole_run_the_product_is_the_speedup_of_the_table() -> None:
    samples, loops = sweep()
    failed = samples.index[3]
    samples.loc[failed, ["error", "finish_reason"]] = ["broken", "error"]  # its prompt drops out of both arms
    summary = summarise(samples, loops, {})
    assert len(summary["why"]) == 3
    ratios = {row["arm"]: row["speedup"]["ratio"] for row in summary["rows"] if row["speedup"]}
    for entry in summary["why"]:
        product = (entry["k"] + 1) * math.prod(factor["factor"] for factor in entry["factors"])
        assert product == pytest.approx(ratios[entry["arm"]], rel=1e-9)


def test_each_factor_is_what_was_put_in() -> None:
    samples, loops = sweep(alpha=0.7, ks=(0, 4), prompts=60, tokens=400)
    (entry,) = summarise(samples, loops, {})["why"]
    factors = {factor["name"]: factor for factor in entry["factors"]}
    assert factors["acceptance"]["factor"] == pytest.approx((1 - 0.7**5) / 0.3 / 5, rel=1e-9)
    assert factors["correlation"]["factor"] == pytest.approx(1.0, abs=0.02)  # the tests are independent
    assert 0.98 < factors["end"]["factor"] <= 1.0
    assert factors["drafting"]["factor"] == pytest.approx(TARGET_S / (TARGET_S + 4 * DRAFT_S), rel=0.01)
    assert factors["drafting"]["evidence"]["c"] == pytest.approx(DRAFT_S / TARGET_S, rel=0.02)
    assert factors["verifying"]["evidence"]["ratio"] == pytest.approx(1.08, rel=0.01)
    assert entry["binding"] == "acceptance"
    assert entry["sentence"].startswith(
        "SpS (K=4), nucleus: upper bound 5x (K+1); largest loss: acceptance (x0.55); "
    )


def test_a_dear_draft_binds_and_nothing_breaks_even() -> None:
    samples, loops = sweep(alpha=0.9, ks=(0, 4), draft_s=2 * TARGET_S)
    (entry,) = summarise(samples, loops, {})["why"]
    assert entry["binding"] == "drafting"
    assert entry["break_even"]["alpha"] is None
    assert entry["break_even"]["c"] < entry["break_even"]["measured_c"]
    assert entry["break_even"]["k"] == 0
    assert "no alpha is enough (measured 0.90)" in entry["sentence"]
    assert "no K gains" in entry["sentence"]


def test_without_phases_the_time_is_one_factor() -> None:
    samples, loops = sweep(ks=(0, 4))
    loops[["draft_s", "verify_s", "sample_s", "other_s"]] = np.nan
    (entry,) = summarise(samples, loops, {})["why"]
    assert [factor["name"] for factor in entry["factors"]] == [
        "acceptance",
        "correlation",
        "end",
        "loop_time",
    ]
    assert entry["break_even"]["c"] is None


def test_loops_that_do_not_account_for_every_token_explain_nothing() -> None:
    samples, loops = sweep(ks=(0, 4))
    assert summarise(samples, loops.iloc[:-1], {})["why"] is None
    assert summarise(samples, loops.iloc[:0], {})["why"] is None


def test_at_the_break_even_alpha_the_speedup_is_one() -> None:
    samples, loops = sweep(alpha=0.7, ks=(0, 4), prompts=40, tokens=400)
    even = summarise(samples, loops, {})["why"][0]["break_even"]
    samples, loops = sweep(alpha=even["alpha"], ks=(0, 4), prompts=40, tokens=400, seed=1)
    assert summarise(samples, loops, {})["rows"][1]["speedup"]["ratio"] == pytest.approx(1.0, abs=0.02)


def test_at_the_break_even_c_the_speedup_is_one() -> None:
    samples, loops = sweep(alpha=0.7, ks=(0, 4), prompts=40, tokens=400)
    even = summarise(samples, loops, {})["why"][0]["break_even"]
    slow = sweep(alpha=0.7, ks=(0, 4), prompts=40, tokens=400, draft_s=even["c"] * TARGET_S)
    assert summarise(*slow, {})["rows"][1]["speedup"]["ratio"] == pytest.approx(1.0, abs=0.02)

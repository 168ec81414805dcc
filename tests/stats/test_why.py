from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_sweep import DRAFT_S, TARGET_S, sweep
from support.summarised import summarise

from spsbench.base.records import GRAPHS, SHARDS_APART
from spsbench.report.sections import markdown
from spsbench.stats.predict.factors import explain, residual_factors
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


IN_GRAPHS = {
    "of SpS": {"ars-nucleus": "stock", "sps-k4-nucleus": GRAPHS},
    "of ArS": {"ars-nucleus": GRAPHS, "sps-k4-nucleus": "stock"},
    "of both": {"ars-nucleus": GRAPHS, "sps-k4-nucleus": GRAPHS},
    "of some shards": {"ars-nucleus": f"{GRAPHS}{SHARDS_APART}stock", "sps-k4-nucleus": "stock"},
}


def _in_graphs(how: Mapping[str, str]) -> tuple[Any, Any]:
    """The summary of a sweep in which graphs did some of the forwards, and of the same loops in which
    none did: a graph's seconds of drawing or judging are booked on the forward."""
    samples, loops = sweep(alpha=0.7, ks=(0, 4), prompts=20, tokens=100)
    loops["sample_s"] += 2e-3  # enough to be seen
    loops["loop_s"] += 2e-3
    samples["decode_s"] += 2e-3 * loops.groupby(["example_id", "arm"]).size().to_numpy()
    apart = summarise(samples, loops, {"target_mode": dict.fromkeys(how, "stock")})
    held = loops["arm"].map(how).str.startswith(GRAPHS)
    loops.loc[held, "verify_s"] += loops["sample_s"]
    loops.loc[held, "sample_s"] = 0.0
    return summarise(samples, loops, {"target_mode": how}), apart


@pytest.mark.parametrize("how", IN_GRAPHS.values(), ids=IN_GRAPHS.keys())
def test_a_forward_with_its_verdict_is_held_against_a_forward_with_its_draw(how: Mapping[str, str]) -> None:
    """Where the phases of two arms are not the same thing, no factor comes of what each holds beside them."""
    held, apart = _in_graphs(how)
    (entry,), (fine,) = held["why"], apart["why"]
    assert [factor["name"] for factor in fine["factors"]][-2:] == ["verifying", "sampling_and_host"]
    found = {factor["name"]: factor for factor in entry["factors"]}
    assert [*found][-3:] == ["drafting", "verifying_and_judging", "host"]
    target, verifying = TARGET_S + 2.3e-3, 1.08 * TARGET_S + 2.3e-3
    assert found["drafting"]["evidence"]["c"] == pytest.approx(DRAFT_S / target, rel=0.02)
    assert found["verifying_and_judging"]["evidence"]["ratio"] == pytest.approx(verifying / target, rel=0.01)
    drafted = target + 4 * DRAFT_S
    judging = pytest.approx(drafted / (verifying + 4 * DRAFT_S), rel=0.01)
    assert found["verifying_and_judging"]["factor"] == judging
    assert entry["factors"][-1]["running"] == pytest.approx(held["rows"][1]["speedup"]["ratio"], rel=1e-9)
    assert entry["break_even"]["measured_c"] == found["drafting"]["evidence"]["c"]
    assert held["prediction"]["arms"][0]["c"] == pytest.approx(found["drafting"]["evidence"]["c"])
    residual = residual_factors({**held["prediction"]["arms"][0], "alpha": 0.7}, entry)
    leviathan = (1 - 0.7**5) / 0.3 / (1 + 4 * held["prediction"]["arms"][0]["c"])
    assert math.prod(one["factor"] for one in residual) == pytest.approx(entry["speedup"] / leviathan)


def test_the_share_of_each_does_not_hang_on_where_a_graph_ends() -> None:
    """The same seconds by three divisions of them among graphs: one ladder."""
    ladders = [
        [factor["factor"] for factor in _in_graphs(how)[0]["why"][0]["factors"]] for how in IN_GRAPHS.values()
    ]
    for ladder in ladders[1:]:
        assert ladders[0] == pytest.approx(ladder, rel=1e-9)


def test_the_report_says_that_a_graph_judged() -> None:
    summary, apart = _in_graphs(IN_GRAPHS["of SpS"])
    said = " ".join(text for part in markdown(summary, {}) for text in part)
    assert "`verify` of SpS (K=4), nucleus includes the warping" in said
    assert "| verifying and judging K+1 tokens against one target step with its draw | " in said
    assert "a target step is the forward and the draw of an ArS step together" in said
    plain = " ".join(text for part in markdown(apart, {}) for text in part)
    assert "CUDA graph" not in plain
    assert "judging" not in plain


def test_a_dear_draft_binds_and_nothing_breaks_even() -> None:
    samples, loops = sweep(alpha=0.9, ks=(0, 4), draft_s=2 * TARGET_S)
    (entry,) = summarise(samples, loops, {})["why"]
    assert entry["binding"] == "drafting"
    assert entry["break_even"]["alpha"] is None
    assert entry["break_even"]["c"] < entry["break_even"]["measured_c"]
    assert entry["break_even"]["k"] == 0
    assert "no alpha is enough (measured 0.90)" in entry["sentence"]
    assert "no K gains" in entry["sentence"]


def test_a_loop_that_costs_no_more_than_a_step_of_a_slow_ars_is_enough_at_any_alpha() -> None:
    samples, loops = sweep(alpha=0.9, ks=(0, 4), draft_s=0.01 * TARGET_S)
    samples.loc[samples["arm"].str.startswith("ars"), "decode_s"] *= 2
    (entry,) = summarise(samples, loops, {})["why"]
    assert entry["break_even"]["alpha"] == 0
    assert "Break-even, each alone: any alpha is enough (measured 0.90)" in entry["sentence"]


def test_the_break_even_k_pays_for_verifying_more_tokens() -> None:
    """Of one K: the loops of other K lie between an ArS step and what this one's loop took, not above it by
    drafting alone."""
    samples, loops = sweep(alpha=0.9, ks=(0, 4), draft_s=0.01 * TARGET_S)
    loops.loc[loops["drafted"] > 0, ["verify_s", "loop_s"]] += 1.6 * TARGET_S  # of 5 tokens for 1
    seconds = loops.groupby(["example_id", "arm"])["loop_s"].sum()
    samples["decode_s"] = [seconds[key] for key in zip(samples["example_id"], samples["arm"], strict=True)]
    (entry,) = summarise(samples, loops, {})["why"]
    found = entry["break_even"]["k"]
    cost = {k: 1 + (2.72 - 1) * k / 4 for k in range(65)}  # in ArS steps: 0.04 of drafting, 1.68 of verifying
    gains = [k for k in cost if k and (1 - 0.9 ** (k + 1)) / 0.1 > cost[k]]
    assert abs(found - max(gains)) <= 2
    assert f"K about {found} (measured 4)" in entry["sentence"]


def test_two_k_are_no_fit_for_the_break_even_k() -> None:
    """A line through two loops goes wherever their noise puts it: flat here, so that every K would gain."""
    samples, loops = sweep(alpha=0.7, ks=(0, 2, 4), prompts=20, tokens=100)
    even = summarise(*sweep(alpha=0.7, ks=(0, 4), prompts=20, tokens=100), {})["why"][0]["break_even"]["k"]
    slow = loops["drafted"] == 2
    loops.loc[slow, ["other_s", "loop_s"]] += 20e-3
    seconds = loops.groupby(["example_id", "arm"])["loop_s"].sum()
    samples["decode_s"] = [seconds[key] for key in zip(samples["example_id"], samples["arm"], strict=True)]
    found = {entry["k"]: entry["break_even"]["k"] for entry in summarise(samples, loops, {})["why"]}
    assert abs(found[4] - even) <= 2
    assert found[4] < 64


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

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.simulated_sweep import DRAFT_S, TARGET_S, sweep
from support.summarised import summarise

from spsbench.report.judgement import sentences
from spsbench.stats.predict.costs import prediction

INFO: dict[str, Any] = {"models": {"target": {"parameters": 1_000}, "draft": {"parameters": 100}}}


def _rows(**changes: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = summarise(*sweep(**changes), {})["rows"]
    for row in rows:
        if row["acceptance"]:
            row["acceptance"]["alpha_leviathan"] = 0.7
    return rows


def test_leviathan_is_fed_by_teacher_forcing_and_the_measured_c() -> None:
    found = prediction(_rows(), INFO)
    arm = found["arms"][-1]
    c = DRAFT_S / TARGET_S
    assert (arm["k"], arm["alpha"], arm["c_source"]) == (4, 0.7, "loops")
    assert arm["c"] == pytest.approx(c, rel=0.02)
    expected = (1 - 0.7**5) / 0.3
    assert arm["predicted"] == pytest.approx(expected / (4 * arm["c"] + 1))
    assert arm["residual"] == pytest.approx(arm["measured"] - arm["predicted"])
    assert arm["operations_factor"] == pytest.approx((4 * 0.1 + 5) / expected)
    assert found["samplings"][0]["best_k"] >= 1
    assert [point["k"] for point in found["samplings"][0]["curve"]] == list(range(17))


def test_what_is_predicted_is_held_against_the_ars_of_the_same_engine() -> None:
    """Beside a faster engine's ArS nothing of this one's formula would be the reason."""
    rows, ratio = _rows(), {"ratio": 0.8, "low": 0.7, "high": 0.9}
    own = {"ratio": 1.9, "low": 1.8, "high": 2.0}
    other = [row | {"speedup": ratio, "own_speedup": own} for row in rows]
    (*_, arm) = prediction(other, INFO)["arms"]
    assert (arm["measured"], arm["low"], arm["high"]) == (1.9, 1.8, 2.0)
    assert arm["residual"] == pytest.approx(1.9 - arm["predicted"])
    alone = [row | {"speedup": ratio, "own_speedup": None, "own_baseline": None} for row in rows]
    assert prediction(alone, INFO)["arms"][-1]["measured"] == 0.8


def test_without_teacher_forcing_only_chen_predicts() -> None:
    rows = _rows()
    for row in rows:
        if row["acceptance"]:
            row["acceptance"]["alpha_leviathan"] = None
    found = prediction(rows, {})
    assert found is not None
    for arm in found["arms"]:
        assert (arm["predicted"], arm["residual"], arm["operations_factor"]) == (None, None, None)
        row = next(row for row in rows if row["arm"] == arm["arm"])
        r_prime = row["acceptance"]["r_prime"]
        assert arm["chen"] == pytest.approx(r_prime * (arm["k"] + 1) / (arm["k"] * arm["c"] + 1))
        assert arm["chen_residual"] < 0  # verifying and sampling are not free in the simulation
    assert found["samplings"][0]["best_k"] is None


def test_the_loop_is_a_line_in_k_with_the_draft_as_its_slope() -> None:
    found = prediction(_rows(ks=(0, 1, 2, 3, 4), prompts=60), {})
    line = found["samplings"][0]["loop"]
    assert line["ks"] == [1, 2, 3, 4]
    assert line["slope_ms"] == pytest.approx(1e3 * (DRAFT_S + 0.02 * TARGET_S), rel=0.05)
    assert line["r_squared"] > 0.99
    assert line["drafting_ms_per_token"] == pytest.approx(1e3 * DRAFT_S, rel=0.02)


def test_where_no_phase_was_seen_the_draft_alone_gives_c() -> None:
    samples, loops = sweep(ks=(0, 4))
    loops[["draft_s", "verify_s", "sample_s", "other_s"]] = np.nan
    rows = summarise(samples, loops, {})["rows"]
    without = prediction(rows, {})
    assert (without["arms"][0]["c"], without["arms"][0]["c_source"]) == (None, "not measured")
    alone = {
        **rows[0],
        "arm": "draft-nucleus",
        "method": "draft",
        "ms_per_token": rows[0]["ms_per_token"] / 8,
    }
    found = prediction([*rows, alone], {})
    assert found["arms"][0]["c"] == pytest.approx(1 / 8)
    copying = [row | {"drafter": "lookup"} if row["method"] == "sps" else row for row in rows]
    other = prediction([*copying, alone], {})
    assert (other["arms"][0]["c"], other["arms"][0]["c_source"]) == (None, "not measured")


def test_an_alpha_beyond_one_by_its_last_digit_is_one() -> None:
    rows = _rows(ks=(0, 4))
    rows[1]["acceptance"]["alpha_leviathan"] = math.nextafter(1.0, 2.0)
    found = prediction(rows, {})
    assert found["arms"][0]["tokens_per_loop_predicted"] == 5.0


def test_ars_alone_predicts_nothing() -> None:
    assert prediction(_rows(ks=(0,)), INFO) is None


def test_no_fixed_k_does_better_than_the_bound() -> None:
    summary = summarise(*sweep(ks=(0, 1, 2, 3, 4, 6), prompts=40), {})
    (found,) = summary["hindsight"]
    assert found["gain_bound"] > 1.1
    assert found["max_k"] == 6
    measured = min(row["ms_per_token"] for row in summary["rows"])
    assert found["oracle_ms_per_token"] < measured
    assert found["fixed_ms_per_token"] == pytest.approx(measured, rel=0.05)
    assert found["gain_bound"] == pytest.approx(found["fixed_ms_per_token"] / found["oracle_ms_per_token"])
    # Leviathan et al. 2022: with a free draft the oracle gains at most 1 / (1 - alpha).
    assert found["gain_bound"] < 1 / (1 - 0.7)
    assert found["censored"] == pytest.approx(0.7**6, abs=0.05)


def test_where_no_draft_pays_the_oracle_is_ars() -> None:
    (found,) = summarise(*sweep(ks=(0, 1, 2, 4), alpha=0.2, draft_s=3 * TARGET_S), {})["hindsight"]
    assert found["best_k"] == 0
    assert found["gain_bound"] == pytest.approx(1.0)


def test_a_policy_is_held_against_the_fastest_fixed_k() -> None:
    samples, loops = sweep(ks=(0, 1, 2, 4))
    fixed = summarise(samples, loops, {})
    best = min((row for row in fixed["rows"] if row["k"]), key=lambda row: row["ms_per_token"])
    taken = {"arm": "sps-k4-nucleus+entropy", "method": "sps", "k": 4, "policy": "entropy"}
    adaptive = samples[samples["arm"] == best["arm"]].assign(**taken)
    adaptive["decode_s"] *= 0.8
    both = pd.concat([samples.assign(policy=None), adaptive], ignore_index=True)
    summary = summarise(both, loops, {})
    assert summary["verdict"][0]["policy"] == "entropy"
    assert fixed["verdict"][0]["k"] == best["k"]
    assert any(line.startswith("nucleus: entropy took") for line in sentences(summary))
    (found,) = summary["hindsight"]
    (entry,) = found.pop("adaptive")
    assert found == {name: value for name, value in fixed["hindsight"][0].items() if name != "adaptive"}
    assert (entry["policy"], entry["fixed_k"]) == ("entropy", best["k"])
    assert entry["gain"]["ratio"] == pytest.approx(1 / 0.8)
    assert entry["ms_per_token"] == pytest.approx(0.8 * best["ms_per_token"])


def test_one_k_or_times_without_a_line_give_no_bound() -> None:
    assert summarise(*sweep(ks=(0, 4)), {})["hindsight"] is None
    samples, loops = sweep(ks=(1, 2, 4))
    samples["decode_s"] = np.where(samples["k"] == 4, 1e-3, samples["decode_s"])
    assert summarise(samples, loops, {})["hindsight"] is None

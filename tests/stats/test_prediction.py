from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from simulated_sweep import DRAFT_S, TARGET_S, sweep
from summarised import summarise

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
    assert found is not None
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
    assert found is not None
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
    assert without is not None
    assert (without["arms"][0]["c"], without["arms"][0]["c_source"]) == (None, "not measured")
    alone = {
        **rows[0],
        "arm": "draft-nucleus",
        "method": "draft",
        "ms_per_token": rows[0]["ms_per_token"] / 8,
    }
    found = prediction([*rows, alone], {})
    assert found is not None
    assert found["arms"][0]["c"] == pytest.approx(1 / 8)
    copying = [row | {"drafter": "lookup"} if row["method"] == "sps" else row for row in rows]
    other = prediction([*copying, alone], {})
    assert other is not None
    assert (other["arms"][0]["c"], other["arms"][0]["c_source"]) == (None, "not measured")


def test_an_alpha_beyond_one_by_its_last_digit_is_one() -> None:
    rows = _rows(ks=(0, 4))
    rows[1]["acceptance"]["alpha_leviathan"] = math.nextafter(1.0, 2.0)
    found = prediction(rows, {})
    assert found is not None
    assert found["arms"][0]["tokens_per_loop_predicted"] == 5.0


def test_ars_alone_predicts_nothing() -> None:
    assert prediction(_rows(ks=(0,)), INFO) is None

"""summary.json from hand-made tables: what it holds, and what it leaves null."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.simulated_evidence import rescored, run
from support.summarised import summarise

from spsbench.base.records import Processing
from spsbench.stats.summary import law_of

Make = Callable[..., pd.DataFrame]


def _run(make_samples: Make, make_loops: Make, n: int = 30) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(4)
    ars = make_samples(0.014 * 50 * rng.lognormal(0, 0.05, n), [50] * n)
    sps = make_samples(0.007 * 50 * rng.lognormal(0, 0.05, n), [50] * n, method="sps", k=4)
    accepted = np.tile([4, 4, 3, 2, 0], n)
    loops = make_loops(accepted, alpha=13 / 16, prompts=[f"e{i // 5}" for i in range(5 * n)])
    return pd.concat([ars, sps], ignore_index=True), loops


INFO: dict[str, Any] = {
    "task": "xsum",
    "task_label": "xsum-mini (synthetic)",
    "synthetic": True,
    "pair": "mini",
    "expected_sequences": 30,
    "verification_rule": "modified rejection",
    "peak_memory_bytes": {"ars-nucleus": 1_000, "sps-k4-nucleus": 2_000},
    "target_mode": "eager",
}


def test_the_rows_of_a_complete_run(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops)
    summary = summarise(samples, loops, INFO)
    ars, sps = summary["rows"]
    assert (ars["arm"], sps["arm"]) == ("ars-nucleus", "sps-k4-nucleus")
    assert ars["speedup"] is None
    assert ars["acceptance"] is None
    assert ars["verification_rule"] is None
    assert sps["verification_rule"] == "modified rejection"
    assert (ars["peak_memory_bytes"], sps["peak_memory_bytes"]) == (1_000, 2_000)
    assert (sps["sequences"], sps["tokens"], sps["failed"], sps["missing"]) == (30, 1_500, 0, 0)
    assert sps["metrics"] == {"rouge2": pytest.approx(0.4)}
    assert sps["speedup"]["ratio"] == pytest.approx(ars["ms_per_token"] / sps["ms_per_token"])
    assert sps["speedup"]["low"] < sps["speedup"]["ratio"] < sps["speedup"]["high"]
    end_to_end = ars["end_to_end_ms_per_token"] / sps["end_to_end_ms_per_token"]
    assert sps["end_to_end_speedup"]["ratio"] == pytest.approx(end_to_end)
    assert sps["acceptance"]["mean_acceptance_length"] == pytest.approx(3.6)
    assert sps["tokens_per_loop"] == pytest.approx(3.6)
    assert sps["loop_time"] == pytest.approx(
        {"draft_ms": 2.0, "verify_ms": 5.0, "sample_ms": 1.0, "other_ms": 0.5, "loop_ms": 8.5}
    )
    assert summary["complete"] is True
    assert summary["warnings"] == []
    assert (summary["task_label"], summary["synthetic"]) == ("xsum-mini (synthetic)", True)
    assert summary["schema_version"] == 1


def test_it_is_json_without_nan(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops, n=1)
    loops[["draft_s", "beta_sum"]] = np.nan
    summary = summarise(samples, loops, {})
    json.dumps(summary, allow_nan=False)
    row = summary["rows"][1]
    assert row["loop_time"]["draft_ms"] is None
    assert row["acceptance"]["alpha_beta"] is None
    assert row["speedup"]["low"] is None


def test_samplings_are_compared_within_themselves(make_samples: Make, make_loops: Make) -> None:
    frames = [
        make_samples([1.0] * 3, [10] * 3, method="sps", k=4, sampling="greedy"),
        make_samples([2.0] * 3, [10] * 3, sampling="greedy"),
        make_samples([1.0] * 3, [10] * 3, method="sps", k=4),
        make_samples([3.0] * 3, [10] * 3),
        make_samples([0.2] * 3, [10] * 3, method="draft"),
    ]
    rows = summarise(pd.concat(frames, ignore_index=True), make_loops([]), {})["rows"]
    assert [row["arm"] for row in rows] == [
        "ars-greedy",
        "sps-k4-greedy",
        "ars-nucleus",
        "sps-k4-nucleus",
        "draft-nucleus",
    ]
    ratios = [row["speedup"] and row["speedup"]["ratio"] for row in rows]
    assert ratios == [None, pytest.approx(2.0), None, pytest.approx(3.0), pytest.approx(15.0)]


def test_the_baseline_is_the_fastest_ars(make_samples: Make, make_loops: Make) -> None:
    frames = [
        make_samples([3.0] * 3, [10] * 3),
        make_samples([2.0] * 3, [10] * 3, engine="graphed"),
        make_samples([1.0] * 3, [10] * 3, method="sps", k=4),
    ]
    rows = {row["arm"]: row for row in summarise(pd.concat(frames), make_loops([]), {})["rows"]}
    assert rows["ars-nucleus@graphed"]["speedup"] is None
    assert rows["sps-k4-nucleus"]["baseline"] == "ars-nucleus@graphed"
    assert rows["sps-k4-nucleus"]["speedup"]["ratio"] == pytest.approx(2.0)
    assert rows["ars-nucleus"]["speedup"]["ratio"] == pytest.approx(2 / 3)


def test_failed_sequences_are_counted_and_their_loops_left_out(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops)
    last = samples.index[-1]
    samples.loc[last, ["finish_reason", "error"]] = ["error", "out of memory"]
    loops.loc[loops["example_id"] == "e29", ["accepted", "tested"]] = 0
    sps = summarise(samples, loops, INFO)["rows"][1]
    assert (sps["failed"], sps["sequences"], sps["paired_prompts"]) == (1, 29, 29)
    assert sps["acceptance"]["mean_acceptance_length"] == pytest.approx(3.6)


def test_an_interrupted_run_says_what_is_missing(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops, n=25)
    summary = summarise(samples, loops, INFO)
    assert summary["rows"][1]["missing"] == 5
    assert summary["complete"] is False
    assert any("Continue with --resume" in text for text in summary["warnings"])


def test_an_arm_without_a_sample_keeps_its_row(make_samples: Make, make_loops: Make) -> None:
    planned = [
        {"arm": "ars-nucleus", "method": "ars", "k": 0, "engine": "eager", "sampling": "nucleus"},
        {"arm": "sps-k4-nucleus", "method": "sps", "k": 4, "engine": "eager", "sampling": "nucleus"},
    ]
    samples = make_samples([1.0] * 3, [10] * 3)
    summary = summarise(samples, make_loops([]), {"arms": planned, "expected_sequences": 3})
    row = summary["rows"][1]
    assert (row["sequences"], row["missing"], row["ms_per_token"], row["speedup"]) == (0, 3, None, None)
    json.dumps(summary, allow_nan=False)


def test_an_arm_whose_samples_all_failed_keeps_its_row(make_samples: Make, make_loops: Make) -> None:
    ars, sps = make_samples([1.0] * 3, [10] * 3), make_samples([0.0] * 3, [0] * 3, method="sps", k=4)
    sps["finish_reason"], sps["error"] = "error", "out of memory"
    summary = summarise(pd.concat([ars, sps]), make_loops([]), {})
    row = summary["rows"][1]
    assert (row["failed"], row["metrics"], row["speedup"]) == (3, {}, None)


def test_an_empty_run_has_no_rows(make_samples: Make, make_loops: Make) -> None:
    summary = summarise(make_samples([], []), make_loops([]), {})
    assert summary["rows"] == []
    assert summary["complete"] is True


def test_a_sampler_that_does_not_follow_its_rule_is_warned_of(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops)
    loops["beta_sum"] = 0.2 * loops["tested"]
    (text,) = summarise(samples, loops, INFO)["warnings"]
    assert "alpha_tested and alpha_beta differ" in text


def test_evidence_and_parity_are_part_of_it(make_samples: Make, make_loops: Make) -> None:
    samples, loops = _run(make_samples, make_loops)
    ars, sps = rescored(run(30, 0.0, seed=1), every=3), rescored(run(30, 0.3, seed=2, length=200))
    samples["losslessness"] = [*ars["losslessness"], *sps["losslessness"]]
    samples["scores"] = [{"rouge2": 0.3 + 0.01 * (i % 7)} for i in range(60)]
    info = INFO | {"headline_metric": "rouge2", "models": {"target": {"dtype": "float32"}}}
    summary = summarise(samples, loops, info)
    json.dumps(summary, allow_nan=False)
    control, judged = summary["losslessness"]["arms"]
    assert (control["verdict"], judged["verdict"]) == ("ok", "alarm")
    assert summary["losslessness"]["verdict"] == "alarm"
    assert any("nucleus: losslessness fails: e-value" in text for text in summary["warnings"])
    (comparison,) = summary["parity"]["comparisons"]
    assert comparison["prompts"] == 30
    alpha = summary["rows"][1]["acceptance"]["alpha_leviathan"]
    assert 0.3 < alpha < 0.9


def test_several_processes_are_resampled_too(make_samples: Make, make_loops: Make) -> None:
    samples, _ = _run(make_samples, make_loops)
    slower = samples.assign(process=1)
    slower.loc[slower["method"] == "sps", "decode_s"] *= 1.2
    both = pd.concat([samples.assign(process=0), slower], ignore_index=True)
    alone = summarise(samples, make_loops([]), {})["rows"][1]
    row = summarise(both, make_loops([]), {})["rows"][1]
    assert (alone["processes"], row["processes"]) == (1, 2)
    assert row["paired_prompts"] == 30
    assert row["speedup"]["ratio"] == pytest.approx(alone["speedup"]["ratio"] * 2 / 2.2)
    width = row["speedup"]["high"] - row["speedup"]["low"]
    assert width > 5 * (alone["speedup"]["high"] - alone["speedup"]["low"])


def test_a_law_is_named_by_what_differs_from_the_tasks() -> None:
    plain = {"temperature": 0.6, "top_k": 20, "top_p": 1.0, "greedy": False}
    kept: dict[str, Any] = {"arm": "a", "sampling": "nucleus", "params": plain}
    own, greedy = ({**kept, "sampling": name} for name in ("model", "greedy"))
    greedy["params"] = {**plain, "greedy": True}
    assert law_of({"arms": [kept, greedy]}) == law_of({}) == ""
    assert law_of({"arms": [kept, kept], "changed_sampling": ["temperature"]}) == "T=0.6"
    assert law_of({"arms": [kept, greedy], "changed_sampling": ["top_p"]}) == "nucleus: top-p 1"
    assert law_of({"arms": [own]}) == "T=0.6, top-k 20, top-p 1"
    penalty = {"process": Processing(presence_penalty=0.5).record()}
    penalised = [{**arm, "params": arm["params"] | penalty} for arm in (kept, greedy)]
    assert law_of({"arms": penalised}) == "presence penalty 0.5 (transformers)"

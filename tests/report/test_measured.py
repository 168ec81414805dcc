"""What the figures read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
from support.simulated_sweep import sweep
from support.summarised import summarise
from support.synthetic_run import measured

from spsbench.report import judgement
from spsbench.store.summary_types import ArmRow


def test_a_series_says_its_batch() -> None:
    found = measured()
    rows: list[ArmRow] = [{**row, "batch": 4} for row in found.summary["rows"]]
    batched = replace(found, summary={**found.summary, "rows": rows})
    assert [series.label for series in batched.series] == ["nucleus, B=4", "greedy, B=4"]


def test_a_series_is_one_sampling_by_k() -> None:
    assert [series.label for series in measured().series] == ["nucleus", "greedy"]
    assert [[row["k"] for row in series.rows] for series in measured().series] == [[0, 1, 2, 4]] * 2
    assert measured().ks == (0, 1, 2, 4)
    assert measured().fixed_length == 24
    assert measured(fixed_length=False).fixed_length is None


def test_a_loop_knows_where_in_the_output_it_begins() -> None:
    loops = measured().loops_by_arm["sps-k2-nucleus"]
    for _, sequence in loops.groupby(["example_id", "sample_index"], sort=False):
        expected, position = [], 0
        for emitted in sequence["emitted"]:
            expected.append(position)
            position += emitted
        assert sequence["start"].tolist() == expected


def test_sequences_count_their_loops() -> None:
    sequences = measured().sequences["sps-k4-greedy"]
    loops = measured().loops_by_arm["sps-k4-greedy"]
    assert len(sequences) == 12
    assert sequences["loops"].sum() == len(loops)
    np.testing.assert_array_equal(measured().sequences["ars-nucleus"]["loops"], 24)


MODELS = {
    "target": {"parameters": 25_000_000, "dtype": "float32"},
    "draft": {"parameters": 2_500_000, "dtype": "float32"},
}


def _summary(**info: Any) -> dict[str, Any]:
    return summarise(*sweep(), {"models": MODELS, **info})


def test_why_the_fastest_arm_is_not_faster() -> None:
    summary = _summary()
    (why,) = judgement.sentences(summary)
    fastest = max((row for row in summary["rows"] if row["speedup"]), key=lambda row: row["speedup"]["ratio"])
    bound = fastest["k"] + 1
    assert why.startswith(f"SpS (K={fastest['k']}), nucleus: upper bound {bound}x (K+1); largest loss: ")
    assert "Break-even, each alone: alpha " in why


def test_a_weak_baseline_is_named_in_the_headline() -> None:
    assert judgement.weak(_summary(bandwidth_bytes_per_s=40e9)) == [
        "Weak baseline: ArS reaches 24% of its bandwidth floor."
    ]
    assert judgement.weak(_summary(bandwidth_bytes_per_s=12e9)) == []
    assert judgement.weak(_summary()) == []


def test_what_of_a_loop_is_the_host_is_in_the_headline_and_what_to_do() -> None:
    def weak(host_ms: dict[str, float | None], **changed: Any) -> list[str]:
        summary = copy.deepcopy(_summary(bandwidth_bytes_per_s=40e9)) | changed
        for row in summary["rows"]:
            row["loop_time"]["host_ms"] = host_ms.get(row["method"])
            row["loop_time"]["loop_ms"] = 10.0
        return judgement.weak(summary)

    floor = "Weak baseline: ArS reaches 24% of its bandwidth floor."
    remedy = " --engine graphed launches a loop at once."
    bound = "Launch-bound: 71% to 98% of a loop is the host, for which the device waits."
    assert weak({"ars": 9.8, "sps": 7.1}) == [floor, bound + remedy]
    assert weak({"ars": 9.8, "sps": 7.1}, engine="eager: it has sliding attention") == [floor, bound]
    assert weak({"ars": 0.4, "sps": 0.3}) == [floor + remedy]
    assert weak({"ars": None}) == [floor]  # on a CPU


def test_the_regime_is_named_where_the_weights_fit_in_the_cache() -> None:
    assert "overhead of calls" in judgement.sentences(_summary(cache_bytes=1 << 30))[-1]
    assert judgement.sentences({}) == []

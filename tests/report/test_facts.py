"""The lines under a report's title."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support.synthetic_run import measured

from spsbench.base.records import Processing
from spsbench.report import facts

RUN: dict[str, Any] = {
    "identity": {
        "device": "cpu",
        "dtype": "float32",
        "max_new_tokens": 48,
        "pair": {"target": {"name": "/home/me/models/big-one/"}, "draft": {"name": "org/small"}},
    },
    "models": {"threads": 2},
    "arms": [{"sampling": "nucleus", "params": {"temperature": 1.0, "top_k": 0, "top_p": 0.8}}],
    "environment": {
        "cpu": {"model": "AMD EPYC"},
        "spsbench": "0.1.0",
        "git": {"commit": "1f313ed1bf2f", "dirty": True},
    },
    "created_utc": "2026-11-23T00:02:41.002743+00:00",
}


def test_they_say_what_was_measured_and_where() -> None:
    assert facts.facts(measured().summary, RUN) == [
        ("Target", "big-one"),
        ("Draft", "org/small"),
        ("K", "1, 2, 4"),
        ("Sampling", "nucleus (T=1, top-p 0.8), greedy"),
        ("Prompts", "12"),
        ("New tokens per prompt", "at most 48"),
        ("Device", "cpu (AMD EPYC)"),
        ("dtype", "float32"),
        ("Threads", "2"),
        ("Date", "2026-11-23 00:02 UTC"),
        ("spsbench", "0.1.0 (commit 1f313ed, with changes)"),
    ]


def test_a_target_that_stands_in_the_place_of_a_draft_is_none() -> None:
    """Of a run whose drafters need no model run.json has the target twice."""
    pair = {role: {"name": "org/one"} for role in ("target", "draft")}
    rows = [
        {**row, "drafter": "lookup" if row["method"] == "sps" else None} for row in measured().summary["rows"]
    ]
    run = {**RUN, "identity": {**RUN["identity"], "pair": pair}}
    summary: Any = {**measured().summary, "rows": rows}
    assert "Draft" not in dict(facts.facts(summary, run))
    assert "Draft" in dict(facts.facts(summary, {**RUN}))
    assert dict(facts.facts(measured().summary, run))["Draft"] == "org/one"


def test_of_a_stored_processing_what_was_asked_for_alone_is_named() -> None:
    stored = json.loads(json.dumps(Processing(min_p=0.1, frequency_penalty=0.3).record()))
    arm = RUN["arms"][0] | {"params": {"temperature": 1.0, "process": stored}}
    shown = dict(facts.facts(measured().summary, RUN | {"arms": [arm]}))
    assert shown["Sampling"] == "nucleus (T=1, min-p 0.1, frequency penalty 0.3 (transformers)), greedy"


def test_a_gpu_is_named() -> None:
    gpus = {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
    run = {"identity": {"device": "cuda"}, "environment": {"cpu": {"model": "AMD"}, **gpus}}
    assert facts.device(run) == "cuda (NVIDIA H200)"


def test_of_the_gpu_that_computed_a_reader_sees_what_two_runs_may_differ_in() -> None:
    gpu = {
        "device": "cuda:1",
        "name": "NVIDIA H200",
        "memory_bytes": 139 << 30,
        "driver": "535.183.01",
        "cuda": "12.8",
        "power_limit_w": 600.0,
        "power_limit_default_w": 700.0,
        "ecc": True,
        "sm_clock_most_mhz": 1980,
        "tf32_matmul": False,
        "graphs": True,
        "attention": {"target": "sdpa", "draft": "sdpa", "sdpa_kernels": "math"},
        "before": {"sm_clock_mhz": 345, "temperature_c": 34},
        "after": {"sm_clock_mhz": 1755, "temperature_c": None},
    }
    seen = {
        "device": "NVIDIA H200, cuda:1",
        "sequences": 40,
        "sm_clock_mhz": [1410.0, 1980.0, 1755.0],
        "throttled": {"power_cap": 12},
        "shared": 0,
    }
    summary: Any = {**measured().summary, "gpu": seen}
    run = {"identity": {"device": "cuda:1"}, "gpu": gpu, "device_peak_bytes": 17 << 30}
    found = dict(facts.facts(summary, run))
    assert {name: text for name, text in found.items() if name.startswith(("Device", "GPU"))} == {
        "Device": "cuda:1 (NVIDIA H200)",
        "GPU software": "driver 535.183.01, CUDA 12.8",
        "GPU power": "limit 600 W of 700 W by default, ECC on",
        "GPU clocks": "before 345 MHz at 34 °C, after 1,755 MHz, at most 1,980 MHz",
        "GPU arithmetic": "TF32 off, attention sdpa, graphs on",
        "GPU in sequences": "SM 1,410 to 1,980 MHz, median 1,755, power cap in 12 of 40, other processes in "
        "0 of 40",
        "GPU memory": "17,408 MiB at most, of 142,336 MiB",
    }


def test_what_is_unusual_is_named_too() -> None:
    rows = [
        {**measured().summary["rows"][1], "drafter": name, "engine": engine, "batch": batch}
        for name, engine, batch in (("model", "eager", 1), ("lookup", "graphed", 8))
    ]
    found = dict(facts.facts({**measured().summary, "rows": rows}, {}))
    assert (found["Drafters"], found["Engines"], found["Batch size"]) == (
        "model, lookup",
        "eager, graphed",
        "1, 8",
    )
    assert found["Pair"] == "simulated"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([3, 1, 2, 7, 7], "1 to 3, 7"), ([1, 2, 4], "1, 2, 4")]
)
def test_runs_of_numbers_go_by_their_ends(numbers: list[int], text: str) -> None:
    assert facts.ranges(numbers) == text


def test_foreign_text_is_escaped_in_the_report() -> None:
    run = {"identity": {"pair": {"target": {"name": "<b>*x*\n# y"}}}}
    assert facts.setup(measured().summary, run)[0] == "Target: &lt;b&gt;\\*x\\* \\# y  "


def test_a_width_of_many_times_the_speedup_has_no_exponent() -> None:
    summary = copy.deepcopy(measured().summary)
    for row in summary["rows"]:
        if row["speedup"]:
            row["speedup"] |= {"ratio": 0.8, "low": 0.02, "high": 44.0}
    end = {"reason": "budget", "budget_s": 1.0, "prompts": 2, "pool": 3, "precision": None, "anytime": False}
    summary["stopping"] = end
    narrowest = "the narrowest speedup is known to ±2700%, the widest to ±2700%"
    assert facts.stopping(summary) == [f"Budget of 1 s reached after 2 of 3 prompts: {narrowest}."]

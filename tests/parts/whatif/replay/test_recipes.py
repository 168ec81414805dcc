"""Advice as other engines take it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from spsbench.base.errors import UnavailableError
from spsbench.base.records import SamplingParams, Spec
from spsbench.parts.whatif.replay.cells import Sought
from spsbench.parts.whatif.replay.elsewhere import read_times
from spsbench.parts.whatif.replay.prediction import DrafterForecast
from spsbench.parts.whatif.replay.recipes import FORMATS, can_run, recipe, schedule

DRAWN, GREEDY = SamplingParams(), SamplingParams(greedy=True)


def found(drafter: str, k: int = 4, rule: str = "modified-rejection") -> DrafterForecast:
    nothing = cast("Any", None)
    sought = Sought(Spec.parse(drafter), nothing)
    return DrafterForecast(sought, k, rule, work=nothing, emitted=np.ones(k + 1), bytes=0)


def vllm(*args: Any) -> dict[str, Any]:
    flag, value = shlex.split(recipe("vllm", *args))
    assert flag == "--speculative-config"
    parsed: dict[str, Any] = json.loads(value)
    return parsed


def test_vllm_takes_the_draws_of_the_draft_and_the_rule_that_was_chosen() -> None:
    plain = {"num_speculative_tokens": 4, "method": "draft_model", "model": "small"}
    assert vllm(found("model"), "small", GREEDY) == plain
    assert vllm(found("model"), "small", DRAWN) == plain | {"draft_sample_method": "probabilistic"}
    assert vllm(found("model", rule="block"), "small", DRAWN)["rejection_sample_method"] == "block"
    copied = vllm(found("lookup:max_n=3:min_n=2"), "", DRAWN)
    assert (copied["method"], copied["prompt_lookup_min"], copied["prompt_lookup_max"]) == ("ngram", 2, 3)


def test_the_largest_k_of_a_schedule_is_the_one_that_vllm_may_draft() -> None:
    config = vllm(found("model"), "small", DRAWN, [(1, 8, 6), (9, 64, 2), (65, 512, 0)])
    assert config["num_speculative_tokens"] == 6
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 6], [9, 64, 2], [65, 512, 0]]


def test_the_other_engines_take_k_as_each_counts_it() -> None:
    sglang = shlex.split(recipe("sglang", found("model"), "small", DRAWN))
    options = dict(zip(sglang[::2], sglang[1::2], strict=True))
    assert (options["--speculative-num-steps"], options["--speculative-num-draft-tokens"]) == ("4", "5")
    llama = shlex.split(recipe("llama-cpp", found("lookup"), "", DRAWN))
    assert llama[llama.index("--spec-ngram-simple-size-m") + 1] == "4"
    drawn, greedy = (recipe("llama-cpp", found("model"), "small", each) for each in (DRAWN, GREEDY))
    assert drawn == f"{greedy} --spec-draft-sampling probabilistic"
    written = yaml.safe_load(recipe("tensorrt-llm", found("model"), "small", DRAWN))
    assert written == {
        "speculative_config": {
            "decoding_type": "DraftTarget",
            "max_draft_len": 4,
            "speculative_model": "small",
        }
    }


def test_what_an_engine_does_not_have_is_known() -> None:
    assert can_run("vllm", found("model", rule="block"))
    assert not can_run("sglang", found("model", rule="block"))
    assert not any(can_run(engine, found("heads")) for engine in FORMATS)
    assert not can_run("llama-cpp", found("suffix"))


TIMES = {
    "step_ms": {"1": 10.0, "8": 12.0, "64": 40.0},
    "cells": [
        {"batch": batch, "k": k, "verify_ms": verify, "draft_ms": k * 1.0}
        for batch, by_k in {1: {2: 10.5, 6: 11.0}, 8: {2: 14.0, 6: 20.0}, 64: {2: 110.0, 6: 260.0}}.items()
        for k, verify in by_k.items()
    ],
}
TOKENS = {2: 2.4, 6: 3.6}


def test_k_by_batch_size_is_the_fastest_by_forwards_and_replayed_tokens(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(TIMES, indent=2))
    by_batch = schedule(path, TOKENS, drafts=True)
    assert by_batch == [(1, 7, 6), (8, 63, 2), (64, 64, 0)]
    for (_, last, k), size in zip(by_batch, (1, 8, 64), strict=True):
        assert last >= size
        worth = {0: 1.0} | {
            cell["k"]: TOKENS[cell["k"]]
            * TIMES["step_ms"][str(size)]
            / (cell["verify_ms"] + cell["draft_ms"])  # type: ignore[index, call-overload]
            for cell in TIMES["cells"]  # type: ignore[attr-defined]
            if cell["batch"] == size
        }
        assert worth[k] == max(worth.values())
    assert schedule(path, TOKENS, drafts=False) != by_batch  # copies cost no forward
    assert schedule(path, {2: 1.2, 6: 1.3}, drafts=True) == [(1, 64, 0)]  # the control: nothing is accepted


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"cells": []}, "step_ms"),
        (TIMES | {"cells": [{"batch": 1, "k": 2}]}, "verify_ms"),
        (TIMES | {"cells": []}, "no forwards for K = 2, 6"),
    ],
)
def test_a_file_of_other_times_is_refused(content: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UnavailableError, match=why):
        schedule(path, TOKENS, drafts=True)


def test_times_with_a_mark_of_byte_order_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    rounds, model = {"rows": [1, 3], "seconds": [[0.1, 0.2]]}, {"name": "m", "parameters": 1}
    content = {"target": model, "draft": model, "device": "cpu", "context": 8}
    content["rounds"] = {"target": rounds, "draft": rounds}
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_times(path).context == 8

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.simulated_sweep import sweep
from support.summarised import arms_in

from spsbench.stats import comparison
from spsbench.stats.comparison import Side, compare, matched, slower, undecided
from spsbench.stats.corpus import CorpusMetric
from spsbench.tasks.metrics.builtin import BLEU, bleu_counts

RUN: dict[str, Any] = {
    "verification_rule": "modified rejection",
    "identity": {
        "task": "xsum",
        "prompt_sha256": "abc",
        "stop": ["\n"],
        "max_new_tokens": 40,
        "fixed_length": True,
        "device": "cpu",
        "dtype": "float32",
        "seed": 0,
        "arms": [{"sampling_name": "nucleus", "sampling": {"top_p": 0.8}}],
    },
    "environment": {"cpu": {"model": "x", "usable_threads": 2}, "gpus": [], "libraries": {"torch": "1"}},
}


def _side(name: str = "a", *, factor: float = 1.0, seed: int = 0, prompts: int = 30, **changes: Any) -> Side:
    samples, _ = sweep(seed=seed, prompts=prompts)
    samples["decode_s"] *= factor
    run = deepcopy(RUN) | {"arms": arms_in(samples)}
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = run
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return Side(name, run, {f"e{i}": f"prompt {i}" for i in range(prompts)}, samples)


def test_the_ratio_is_time_of_b_over_time_of_a() -> None:
    found = compare(_side(), _side("b", factor=1.1, seed=1))
    assert (found["refusals"], found["machine"], found["warnings"]) == ([], [], [])
    assert (found["prompts"], len(found["arms"])) == (30, 4)
    for arm in found["arms"]:
        ratio = arm["time_ratio"]
        assert ratio["ratio"] == pytest.approx(arm["b_ms_per_token"] / arm["a_ms_per_token"])
        assert ratio["low"] < ratio["ratio"] < ratio["high"]
        assert ratio["low"] < 1.1 < ratio["high"]
    ars, *sps = found["arms"]
    assert ars["a_speedup"] is None
    assert all(arm["a_speedup"] > 1 and arm["b_speedup"] > 1 for arm in sps)


def test_a_run_against_itself_is_one_without_doubt() -> None:
    side = _side()
    found = compare(side, side)
    assert all(arm["time_ratio"] == {"ratio": 1.0, "low": None, "high": None} for arm in found["arms"])
    assert slower(found, 0.0) == []


def test_the_gate_needs_the_whole_interval() -> None:
    found = compare(_side(), _side("b", factor=1.3, seed=1))
    assert len(slower(found, 0.02)) == 4
    assert slower(found, 0.6) == []
    lows, highs = ([arm["time_ratio"][end] for arm in found["arms"]] for end in ("low", "high"))
    between = (lows[1] + highs[1]) / 2 - 1
    assert found["arms"][1]["arm"] in undecided(found, between)
    assert not any(found["arms"][1]["arm"] in each.arm for each in slower(found, between))


def test_prompts_are_paired_by_name_and_words() -> None:
    b = _side("b", seed=1, prompts=40)
    words = dict(b.prompts) | {"e3": "other words"}
    found = compare(_side(), Side("b", b.run, words, b.samples))
    assert found["prompts"] == 29
    assert all(arm["prompts"] == 29 for arm in found["arms"])
    assert [text.split(" ")[0] for text in found["warnings"]] == ["1", "10"]


def test_nothing_in_common_is_refused() -> None:
    b = _side("b")
    strangers = {f"x{name}": text for name, text in b.prompts.items()}
    assert compare(_side(), Side("b", b.run, strangers, b.samples))["refusals"] == [
        "no prompt is in both runs"
    ]
    reworded = dict.fromkeys(b.prompts, "?")
    found = compare(_side(), Side("b", b.run, reworded, b.samples))
    assert (found["refusals"], found["arms"]) == (["every prompt differs in its words"], [])
    other = b.samples.assign(arm="z-" + b.samples["arm"])
    assert "no arm is in both runs" in compare(_side(), Side("b", b.run, b.prompts, other))["refusals"]


@pytest.mark.parametrize(
    ("path", "value", "kind", "said"),
    [
        ("identity__task", "humaneval", "refusals", "the task differs (xsum, humaneval)"),
        ("identity__stop", [], "refusals", "the stop strings differs"),
        ("identity__max_new_tokens", 128, "refusals", "the length limit differs (40, 128)"),
        ("verification_rule", "exact match", "refusals", "the verification rule differs"),
        (
            "identity__arms",
            [{"sampling_name": "nucleus", "sampling": {"top_p": 0.9}}],
            "refusals",
            "the sampling 'nucleus' differs",
        ),
        ("environment__cpu__model", "y", "machine", "the CPU differs (x, y)"),
        ("identity__device", "cuda", "machine", "the device differs (cpu, cuda)"),
        ("environment__gpus", [{"name": "H200"}], "machine", "the GPU differs"),
        ("identity__dtype", "bfloat16", "warnings", "the dtype differs (float32, bfloat16)"),
        ("environment__libraries__torch", "2", "warnings", "torch differs (1, 2)"),
    ],
)
def test_every_difference_is_told_by_its_weight(path: str, value: Any, kind: str, said: str) -> None:
    found = compare(_side(), _side("b", **{path: value}))
    told = {name: found[name] for name in ("refusals", "machine", "warnings")}
    assert [text for text in told.pop(kind) if text.startswith(said)]
    assert list(told.values()) == [[], []]


def test_rules_are_compared_arm_by_arm() -> None:
    """Two runs with other Ks beside the common ones are runs by the same rule."""
    ours = _side(verification_rule={"sps-k2": "modified", "sps-k4": "modified"})
    wider = _side("b", verification_rule={"sps-k2": "modified", "sps-k8": "modified"})
    assert compare(ours, wider)["refusals"] == []
    other = _side("b", verification_rule={"sps-k2": "exact match"})
    assert compare(ours, other)["refusals"] == [
        "the verification rule of sps-k2 differs (modified, exact match)"
    ]


def test_metrics_are_paired_differences() -> None:
    a, b = _side(), _side("b", seed=1)
    scored = [_with_scores(side.samples, shift) for side, shift in ((a, 0.0), (b, 0.05))]
    found = compare(Side("a", a.run, a.prompts, scored[0]), Side("b", b.run, b.prompts, scored[1]))
    (metric,) = found["arms"][1]["metrics"]
    assert metric["metric"] == "rouge2"
    assert metric["difference"] == pytest.approx(0.05)
    assert metric["b"] - metric["a"] == pytest.approx(metric["difference"])


@pytest.mark.parametrize(("of_b", "alike"), [("tok:13a", True), ("tok:intl", False), (None, False)])
def test_a_metric_computed_in_another_way_is_named_and_has_no_interval(of_b: str | None, alike: bool) -> None:
    a, b = _side(), _side("b", seed=1)
    scored = [_with_scores(side.samples, shift) for side, shift in ((a, 0.0), (b, 0.05))]
    for name, scores in zip(scored[1]["example_id"], scored[1]["scores"], strict=True):
        scores["rouge2"] += 0.01 * (int(name[1:]) % 2)
    runs = [
        side.run | {"metrics": {"rouge2": {"signature": told, "margin": 0.1}}}
        for side, told in ((a, "tok:13a"), (b, of_b))
    ]
    found = compare(Side("a", runs[0], a.prompts, scored[0]), Side("b", runs[1], b.prompts, scored[1]))
    (metric,) = found["arms"][1]["metrics"]
    assert metric["difference"] == pytest.approx(0.055)
    assert (metric["low"] is not None) == alike
    named = [text for text in found["warnings"] if "the metric rouge2 was computed in different ways" in text]
    assert len(named) == (not alike)
    if not alike:
        assert f"(tok:13a in A, {of_b or 'no signature'} in B)" in named[0]


@pytest.mark.parametrize("alike", [True, False])
def test_bleu_under_two_signatures_has_no_interval(alike: bool) -> None:
    about = [BLEU.record() | {"signature": told} for told in ("tok:13a", "tok:13a" if alike else "tok:zh")]
    sides = []
    for name, seed, own in zip("ab", (0, 1), about, strict=True):
        side = _side(name, seed=seed)
        rng = np.random.default_rng(seed)
        words = [" ".join(rng.choice(["a", "b", "c"], 8)) for _ in range(len(side.samples))]
        rows = bleu_counts([""] * len(words), words, ["a b c a b c a b"] * len(words))
        scores = [dict(zip(BLEU.columns, row, strict=True)) for row in rows]
        samples = side.samples.assign(scores=scores)
        sides.append(Side(name, side.run | {"metrics": {"bleu": own}}, side.prompts, samples))
    found = compare(*sides)
    (metric,) = found["arms"][0]["metrics"]
    assert metric["metric"] == "bleu"
    assert metric["difference"] == pytest.approx(metric["b"] - metric["a"])
    assert (metric["low"] is not None) == alike
    assert any("the metric bleu" in text for text in found["warnings"]) != alike


@pytest.mark.parametrize("corpus", [False, True])
def test_a_difference_of_rounding_has_no_interval(corpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One score and one share, reached by other sums: parity calls that the same on every prompt."""
    share = CorpusMetric(("share:part", "share:whole"), lambda sums: sums[0] / sums[1])
    monkeypatch.setattr(comparison, "corpus_metrics", lambda run: {"share": share} if corpus else {})
    sides = []
    for name, odd, whole in (("a", 0.1 + 0.2, 1.0), ("b", 0.3, 3.0)):
        side = _side(name)
        scores: list[dict[str, float]] = []
        for number in (int(example[1:]) for example in side.samples["example_id"]):
            part = whole * (0.2 + 0.001 * number)
            counted = {"share:part": part, "share:whole": whole}
            scores.append(counted if corpus else {"rouge2": odd if number % 2 else 0.3})
        sides.append(Side(name, side.run, side.prompts, side.samples.assign(scores=scores)))
    (metric,) = compare(*sides)["arms"][0]["metrics"]
    assert abs(metric["difference"]) < 1e-15
    assert (metric["low"], metric["high"]) == (None, None)


def _with_scores(samples: pd.DataFrame, shift: float) -> pd.DataFrame:
    scores = [{"rouge2": 0.2 + 0.001 * int(name[1:]) + shift} for name in samples["example_id"]]
    return samples.assign(scores=scores)


def test_the_only_sps_arms_of_two_samplings_are_not_matched_by_themselves() -> None:
    def side(k: int, sampling: str) -> Side:
        whole = _side()
        samples = whole.samples[whole.samples["arm"].isin({"ars-nucleus", f"sps-k{k}-nucleus"})]
        entries = [entry | {"sampling": sampling} for entry in whole.run["arms"]]
        return Side("x", {**whole.run, "arms": entries}, whole.prompts, samples)

    ks = sorted(arm["k"] for arm in _side().arms().values() if arm["method"] == "sps")
    one, other = side(ks[0], "nucleus"), side(ks[1], "nucleus")
    assert matched(one, other, {})[f"sps-k{ks[0]}-nucleus"] == f"sps-k{ks[1]}-nucleus"
    assert f"sps-k{ks[0]}-nucleus" not in matched(one, side(ks[1], "top-k"), {})


@pytest.mark.parametrize(
    ("fact", "kind", "said"),
    [
        ({"power_limit_w": 400.0}, "machine", "the GPU's power limit in W differs (700.0, 400.0)"),
        ({"name": "NVIDIA A100"}, "machine", "the GPU differs (NVIDIA H100, NVIDIA A100)"),
        ({"driver": "580.65"}, "warnings", "the GPU's driver differs (535.183, 580.65)"),
        ({"cuda": "13.0"}, "warnings", "CUDA differs (12.8, 13.0)"),
    ],
)
def test_the_gpus_that_computed_are_compared_and_others_are_not(
    fact: dict[str, Any], kind: str, said: str
) -> None:
    gpu = {"name": "NVIDIA H100", "driver": "535.183", "cuda": "12.8", "power_limit_w": 700.0}
    beside = {"environment__gpus": [{"name": "NVIDIA L4"}]}
    same = compare(_side(gpu=gpu), _side("b", gpu=gpu, **beside))
    assert (same["machine"], same["warnings"]) == ([], [])
    found = compare(_side(gpu=gpu), _side("b", gpu=gpu | fact))
    told = {name: found[name] for name in ("refusals", "machine", "warnings")}
    assert told.pop(kind) == [said]
    assert list(told.values()) == [[], []]


def _without(side: Side, rows: Any, **values: Any) -> Side:
    samples = side.samples.copy()
    for name, value in values.items():
        samples.loc[rows(samples), name] = value
    return Side(side.name, side.run, side.prompts, samples)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"finish_reason": "error", "error": "out of memory"}, "out of memory"),
        ({"decode_s": math.nan}, "values that are no times"),
        ({"decode_s": 0.0}, "values that are no times"),
        ({"decode_s": -1.0}, "values that are no times"),
    ],
)
def test_an_arm_with_fewer_times_is_named(values: dict[str, Any], reason: str) -> None:
    a, b = _side(), _side("b", seed=1)
    assert compare(a, b)["unfinished"] == []
    arm = next(iter(a.arms()))
    half = _without(
        b, lambda s: (s["arm"] == arm) & s["example_id"].isin([f"e{i}" for i in range(15)]), **values
    )
    expected = {"arm": arm, "b_arm": arm, "a_finished": 30, "b_finished": 15, "reason": reason}
    assert compare(a, half)["unfinished"] == [expected]
    assert compare(half, a)["unfinished"] == []  # fewer prompts to judge by, each with a time in both
    gone = _without(b, lambda s: s["arm"] == arm, **values)
    assert compare(a, gone)["unfinished"] == [expected | {"b_finished": 0}]
    assert compare(gone, a)["unfinished"] == [expected | {"a_finished": 0, "b_finished": 30}]


def test_an_arm_that_was_to_be_measured_and_was_not_is_named() -> None:
    a, b = _side(), _side("b", seed=1)
    arm = next(iter(a.arms()))
    none = Side("b", b.run, b.prompts, b.samples[b.samples["arm"] != arm])
    expected = {"arm": arm, "b_arm": arm, "a_finished": 30, "b_finished": 0, "reason": None}
    assert compare(a, none)["unfinished"] == [expected]
    fewer = b.run | {"arms": [entry for entry in b.run["arms"] if entry["arm"] != arm]}
    assert compare(a, Side("b", fewer, b.prompts, none.samples))["unfinished"] == []

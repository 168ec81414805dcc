from __future__ import annotations

from typing import Any, cast

import pandas as pd
import pytest
from support.simulated_sweep import TARGET_S, sweep
from support.summarised import summarise

from spsbench.stats.certainty import Certainty
from spsbench.stats.predict.verdict import halves, verdicts


def _verdict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    (found,) = summarise(*sweep(*args, **kwargs), {})["verdict"]
    return cast("dict[str, Any]", found)


def test_it_names_the_fastest_arm_of_the_table_with_the_tables_speedup() -> None:
    samples, loops = sweep(ks=(0, 1, 4, 12), prompts=60, alpha=0.75)
    summary = summarise(samples, loops, {})
    (found,) = summary["verdict"]
    rated = [row for row in summary["rows"] if row["speedup"]]
    fastest = max(rated, key=lambda row: row["speedup"]["ratio"])
    assert (found["arm"], found["k"], found["speedup"]) == (fastest["arm"], 4, fastest["speedup"])
    assert found["end_to_end"] == fastest["end_to_end_speedup"]
    assert (found["outcome"], found["candidates"], found["prompts"]) == ("pays", 3, 60)
    assert {other["k"] for other in found["others"]} == {1, 12}
    assert all(other["slower"] and other["gain"]["low"] > 1 for other in found["others"])
    assert found["tail_s"]["chosen"]["p90"] < found["tail_s"]["ars"]["p90"]


def test_arms_that_differ_by_noise_alone_cannot_be_told_apart() -> None:
    samples, loops = sweep(ks=(0, 1, 4), prompts=12, alpha=0.8)
    twin = samples[samples["k"] == 4].assign(k=5, arm="sps-k5-nucleus")
    twin["decode_s"] *= [1.02, 0.98] * 6
    again = loops[loops["arm"] == "sps-k4-nucleus"]
    both = pd.concat([samples, twin]), pd.concat([loops, again.assign(arm="sps-k5-nucleus")])
    (found,) = summarise(*both, {})["verdict"]
    assert found["k"] in (4, 5)
    assert {other["k"]: other["slower"] for other in found["others"]} == {1: True, 9 - found["k"]: False}


def test_choosing_is_measured_on_the_other_half() -> None:
    """A K that is fast on one half alone may be the fastest of the table; chosen elsewhere it loses."""
    samples, loops = sweep(ks=(0, 4, 8), prompts=60, alpha=0.75)
    honest = summarise(samples, loops, {})["verdict"][0]
    assert honest["outcome"] == "pays"
    one, other = map(set, halves(set(samples["example_id"])))
    spoiled = samples.copy()
    lucky = {4: one, 8: other}
    for k, half in lucky.items():
        here = spoiled["k"] == k
        spoiled.loc[here & spoiled["example_id"].isin(half), "decode_s"] *= 0.5
        spoiled.loc[here & ~spoiled["example_id"].isin(half), "decode_s"] *= 3.0
    found = summarise(spoiled, loops, {})["verdict"][0]
    assert found["elsewhere"]["ratio"] < 1 < found["elsewhere"]["prompts"]
    assert found["outcome"] != "pays"


def test_one_arm_is_chosen_from_nothing_so_nothing_is_measured_elsewhere() -> None:
    found = _verdict(ks=(0, 4), prompts=20)
    assert (found["candidates"], found["others"], found["elsewhere"]) == (1, [], None)
    assert found["outcome"] == "pays"


def test_the_halves_do_not_depend_on_the_order_of_prompts() -> None:
    samples, loops = sweep(ks=(0, 1, 4), prompts=40)
    turned = samples.sample(frac=1.0, random_state=3)
    (one,), (two,) = (summarise(frame, loops, {})["verdict"] for frame in (samples, turned))
    assert one["k"] == two["k"]
    assert one["elsewhere"]["ratio"] == pytest.approx(two["elsewhere"]["ratio"])


def test_where_drafting_is_dear_it_does_not_pay_and_break_even_says_from_where() -> None:
    found = _verdict(ks=(0, 2, 4), draft_s=3 * TARGET_S)
    assert found["outcome"] == "does not pay"
    assert found["speedup"]["high"] < 1
    assert found["break_even"]["c"] < found["break_even"]["measured_c"]


def test_few_prompts_choose_among_several_arms_nothing() -> None:
    assert _verdict(ks=(0, 2, 4), prompts=7)["outcome"] == "unclear"
    assert _verdict(ks=(0, 4), prompts=7)["outcome"] == "pays"


def test_without_a_lossless_arm_that_has_a_speedup_there_is_no_verdict() -> None:
    assert summarise(*sweep(ks=(0,)), {})["verdict"] is None
    assert verdicts({}, [], None, Certainty()) is None


def test_a_broken_sampler_is_never_the_one_to_use() -> None:
    samples, loops = sweep(ks=(0, 2, 4), prompts=40)
    summary = summarise(samples, loops, {})
    (sound,) = summary["verdict"]
    by_arm = {str(arm): part for arm, part in samples.groupby("arm")}
    (found,) = verdicts(by_arm, summary["rows"], None, Certainty(), alarmed={sound["arm"]}) or []
    assert found["arm"] != sound["arm"]
    assert sound["arm"] not in {other["arm"] for other in found["others"]}


@pytest.mark.parametrize(
    ("dtype", "computed", "backend", "named"),
    [
        ("auto", "bfloat16", "torch", True),
        ("auto", "float32", "torch", False),
        ("bfloat16", "bfloat16", "torch", False),
    ],
)
def test_a_baseline_that_16_bit_slows_on_a_cpu_is_named(
    dtype: str, computed: str, backend: str, named: bool
) -> None:
    models = {"target": {"dtype": computed, "backend": backend}}
    info = {"models": models, "identity": {"device": "cpu", "dtype": dtype}}
    found = summarise(*sweep(ks=(0, 4)), info)["warnings"]
    assert any("--dtype float32" in text for text in found) is named

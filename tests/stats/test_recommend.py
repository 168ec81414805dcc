from __future__ import annotations

import pytest
from simulated_sweep import TARGET_S, sweep
from summarised import summarise

from spsbench.predict.recommend import recommendation


def test_the_choice_is_judged_on_other_prompts() -> None:
    samples, loops = sweep(ks=(0, 1, 4, 12), prompts=60, alpha=0.75)
    (found,) = summarise(samples, loops, {})["recommendation"]
    assert (found["k"], found["chosen_on"], found["judged_on"]) == (4, 30, 30)
    assert found["speedup"]["low"] < found["speedup"]["ratio"] < found["speedup"]["high"]
    worse = {other["k"]: other for other in found["alternatives"]}
    assert set(worse) == {0, 1, 12}
    assert worse[0]["worse"]
    assert worse[0]["difference_ms"] > 0
    assert found["tail_s"]["chosen"]["p90"] < found["tail_s"]["ars"]["p90"]
    assert found["sentence"].startswith("Recommended for nucleus: K=4, ")
    assert "on 30 other prompts" in found["sentence"]


def test_the_judging_half_has_no_part_in_the_choice() -> None:
    samples, loops = sweep(ks=(0, 1, 4), prompts=60)
    before = summarise(samples, loops, {})["recommendation"][0]
    choosing = set(samples["example_id"]) - set(_judging(samples))
    other = samples.copy()
    spoiled = ~other["example_id"].isin(choosing) & (other["k"] == before["k"])
    other.loc[spoiled, "decode_s"] *= 100
    after = summarise(other, loops, {})["recommendation"][0]
    assert after["k"] == before["k"]
    assert after["speedup"]["ratio"] < 0.1
    assert after["sentence"].startswith("No K is recommended for nucleus: K=")
    assert "The slowest sequences gain nothing." in after["sentence"]


def _judging(samples: object) -> list[str]:
    from spsbench.predict.recommend import _lot

    return sorted(set(samples["example_id"]), key=_lot)[1::2]  # type: ignore[index]


def test_the_split_does_not_depend_on_the_order_of_prompts() -> None:
    samples, loops = sweep(ks=(0, 1, 4), prompts=40)
    turned = samples.sample(frac=1.0, random_state=3)
    (one,), (two,) = (summarise(frame, loops, {})["recommendation"] for frame in (samples, turned))
    assert one["k"] == two["k"]
    assert one["speedup"]["ratio"] == pytest.approx(two["speedup"]["ratio"])


def test_ars_is_recommended_where_nothing_is_faster() -> None:
    (found,) = summarise(*sweep(ks=(0, 2, 4), draft_s=3 * TARGET_S), {})["recommendation"]
    assert (found["k"], found["speedup"]) == (0, None)
    assert found["sentence"].startswith("Recommended for nucleus: ArS")


def test_one_k_few_prompts_or_no_data_recommend_nothing() -> None:
    assert summarise(*sweep(ks=(0, 4)), {})["recommendation"] is None
    assert summarise(*sweep(prompts=7), {})["recommendation"] is None
    assert recommendation({}, []) is None

"""The result table by category: the whole's estimators on a part of the prompts, and no false confidence."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise


def categorised(sizes: dict[str | None, int], **info: Any) -> Any:
    """The summary of a sweep whose first prompts are of the first category, and so on."""
    samples, loops = sweep(ks=(0, 4), prompts=sum(sizes.values()))
    names = [name for name, size in sizes.items() for _ in range(size)]
    by_prompt = dict(zip(dict.fromkeys(samples["example_id"]), names, strict=True))
    return summarise(samples.assign(category=samples["example_id"].map(by_prompt)), loops, info)


def test_a_category_has_the_numbers_that_its_prompts_alone_would_have() -> None:
    parts = categorised({"code": 20, "news": 12})["by_category"]
    assert [(part["category"], part["prompts"]) for part in parts] == [("code", 20), ("news", 12)]
    samples, loops = sweep(ks=(0, 4), prompts=32)
    first = {f"e{number}" for number in range(20)}
    alone = summarise(samples[samples["example_id"].isin(first)], loops[loops["example_id"].isin(first)], {})
    for row, own in zip(parts[0]["rows"], alone["rows"], strict=True):
        same = (
            "arm",
            "sequences",
            "prompts",
            "tokens",
            "ms_per_token",
            "baseline",
            "speedup",
            "tokens_per_loop",
        )
        assert {name: row[name] for name in same} == {name: own[name] for name in same}
        assert row["metrics"] == pytest.approx(own["metrics"])
    assert parts[0]["rows"][1]["speedup"]["low"] is not None


def test_few_prompts_have_a_wider_interval_and_one_has_none() -> None:
    parts = categorised({"a": 12, "b": 3, "c": 1})["by_category"]
    speedups = [part["rows"][1]["speedup"] for part in parts]
    assert [found["low"] is not None for found in speedups] == [True, True, False]
    assert all(found["ratio"] > 1 for found in speedups)


def test_one_category_is_no_reason_for_a_table() -> None:
    assert categorised({"a": 5})["by_category"] == []
    assert categorised({None: 5})["by_category"] == []
    assert summarise(*sweep(prompts=3), {})["by_category"] == []


def test_prompts_without_a_category_come_last() -> None:
    parts = categorised({None: 3, "z": 3})["by_category"]
    assert [(part["category"], part["prompts"]) for part in parts] == [("z", 3), (None, 3)]


def test_a_category_of_failures_has_no_numbers() -> None:
    samples, loops = sweep(ks=(0, 4), prompts=10)
    lost = samples["example_id"].isin({"e0", "e1"})
    samples = samples.assign(category=["lost" if gone else "kept" for gone in lost])
    samples.loc[lost & (samples["k"] == 4), ["finish_reason", "error", "new_tokens"]] = ["error", "Oh!", 0]
    row = summarise(samples, loops, {})["by_category"][1]["rows"][1]
    assert (row["failed"], row["sequences"], row["speedup"], row["ms_per_token"]) == (2, 0, None, None)
    assert row["tokens_per_loop"] is None


def test_what_others_took_widens_intervals_and_mixed_conditions_have_no_times() -> None:
    samples, loops = sweep(ks=(0, 4), prompts=30)
    samples = samples.assign(category=["a" if int(name[1:]) % 2 else "b" for name in samples["example_id"]])
    quiet, waited = (
        summarise(samples.assign(conditions=[{"waited_s": lost}] * len(samples)), loops, {})
        for lost in (0.0, 0.05)
    )
    ours, theirs = (found["by_category"][0]["rows"][1]["speedup"] for found in (quiet, waited))
    assert theirs["low"] < ours["low"] < ours["high"] < theirs["high"]
    parted = samples.assign(condition=[int(int(name[1:]) > 14) for name in samples["example_id"]])
    mixed = summarise(parted, loops, {"conditions": [{"threads": 1}, {"threads": 2}]})
    rows = [row for part in mixed["by_category"] for row in part["rows"]]
    assert {(row["speedup"], row["ms_per_token"]) for row in rows} == {(None, None)}
    assert all(row["tokens_per_loop"] for row in rows)


def test_several_processes_are_paired_within_each() -> None:
    samples, loops = sweep(ks=(0, 4), prompts=20)
    samples = samples.assign(category=["a" if int(name[1:]) < 10 else "b" for name in samples["example_id"]])
    both = [
        pd.concat([frame.assign(process=index) for index in (0, 1)], ignore_index=True)
        for frame in (samples, loops)
    ]
    row = summarise(*both, {})["by_category"][0]["rows"][1]
    assert (row["sequences"], row["prompts"]) == (20, 10)
    assert row["speedup"]["ratio"] > 1

"""Turns of a conversation: one unit of every interval; tokens are compared where prompts are equal."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from spsbench.stats.acceptance import mean_length
from spsbench.stats.losslessness import identity
from spsbench.stats.parity import per_prompt
from spsbench.stats.speedup import paired_sums


def rows(tokens: dict[str, list[int]], prompts: dict[str, list[int]], **more: Any) -> pd.DataFrame:
    """Samples of an arm by example; those with a prompt of their own are later turns."""
    return pd.DataFrame(
        {
            "example_id": name,
            "sample_index": 0,
            "token_ids": ids,
            "new_tokens": len(ids),
            "finish_reason": "length",
            "error": None,
            "prefill_s": 0.0,
            "decode_s": 1.0,
            "conversation": name.partition("/")[0] if name in prompts else None,
            "prompt_ids": prompts.get(name),
            **more,
        }
        for name, ids in tokens.items()
    )


ARS = rows({"a": [1, 2], "a/2": [3, 4], "b": [5], "b/2": [6, 7]}, {"a/2": [9, 1, 2], "b/2": [9, 5]})


@pytest.mark.parametrize(
    ("tokens", "prompts", "compared", "identical", "first"),
    [
        ({}, {}, 4, 1.0, None),
        ({"a/2": [3, 5]}, {}, 4, 0.75, "a/2"),  # asked the same, and parted
        ({"a": [1, 3], "a/2": [8, 8]}, {"a/2": [9, 1, 3]}, 3, 2 / 3, "a"),  # asked after another answer
    ],
)
def test_tokens_are_compared_where_the_prompts_are_equal(
    tokens: dict[str, list[int]],
    prompts: dict[str, list[int]],
    compared: int,
    identical: float,
    first: str | None,
) -> None:
    own = {"a": [1, 2], "a/2": [3, 4], "b": [5], "b/2": [6, 7]} | tokens
    found = identity(ARS, rows(own, {"a/2": [9, 1, 2], "b/2": [9, 5]} | prompts))
    assert found is not None
    assert (found["sequences"], found["identical"]) == (compared, pytest.approx(identical))
    place = found["first_divergence"]
    assert (None if place is None else place["example_id"]) == first


def test_times_and_scores_are_summed_by_conversation() -> None:
    times = paired_sums(ARS, ARS.assign(decode_s=0.5))
    assert list(times.index) == ["a", "b"]
    assert times["time_base"].tolist() == [2.0, 2.0]
    assert times["new_tokens_arm"].tolist() == [4, 3]
    scores = per_prompt(ARS, pd.DataFrame({"x": [1.0, 0.0, 1.0, 1.0]}, index=ARS.index), "x")
    assert scores.to_dict() == {"a": 0.5, "b": 1.0}


def test_acceptance_has_an_interval_over_conversations() -> None:
    """Turns alike within a conversation tell no more than one of them."""
    counts = {"a": 1, "b": 2, "c": 3, "d": 4}
    once = pd.DataFrame(
        {"example_id": name, "accepted": accepted} for name, accepted in counts.items() for _ in range(5)
    )
    twice = pd.concat([once.assign(conversation=None), once.assign(conversation=once["example_id"])])
    twice.loc[twice["conversation"].notna(), "example_id"] += "/2"
    one, both = mean_length(once), mean_length(twice)
    assert one is not None
    assert both is not None
    assert (both.estimate, both.low, both.high) == pytest.approx((one.estimate, one.low, one.high))
    apart = mean_length(twice.drop(columns="conversation"))
    assert apart is not None
    assert apart.low is not None
    assert both.low is not None
    assert apart.low > both.low

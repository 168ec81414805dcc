"""Tokens per loop from what a run recorded of its ArS texts."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from spsbench.law.text_loops import anchored, loops_over
from spsbench.stats.predict.costs import replayed
from spsbench.summary_types import ArmRow

TEXTS = {f"p{i}": np.random.default_rng(i).uniform(0.2, 1.0, 15 + i) for i in range(6)}


def rows(**changes: Any) -> list[ArmRow]:
    arms = [{"method": "ars", "k": 0}, {"method": "sps", "k": 2, **changes}, {"method": "sps", "k": 5}]
    common = {"sampling": "nucleus", "engine": "eager"}
    return cast(list[ArmRow], [{**common, **arm, "arm": f"{arm['method']}-k{arm['k']}"} for arm in arms])


def evidence() -> pd.DataFrame:
    """Every token has probability one half; a draft of it passes with the text's chances."""
    parts = [
        pd.DataFrame(
            {
                "example_id": name,
                "sample_index": 0,
                "arm": "ars-k0",
                "position": np.arange(len(chances)),
                "log_target": np.log(0.5),
                "log_draft": np.log(0.5 * chances),
            }
        )
        for name, chances in TEXTS.items()
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("k", [2, 5])
def test_it_is_the_law_of_the_loops_over_all_texts(k: int) -> None:
    found = replayed(evidence().sample(frac=1.0, random_state=1), rows())[f"sps-k{k}"]
    loops = sum(loops_over(anchored(chances, k)).loops for chances in TEXTS.values())
    assert found["estimate"] == pytest.approx(sum(map(len, TEXTS.values())) / loops)
    assert found["low"] is not None
    assert found["high"] is not None
    assert found["low"] < found["estimate"] < found["high"]


def test_a_text_that_was_not_read_as_a_whole_says_nothing() -> None:
    whole = replayed(evidence(), rows())["sps-k2"]["estimate"]
    table = evidence()
    cut = table[~((table["example_id"] == "p0") & (table["position"] == 3))]
    unknown = table.assign(
        log_draft=table["log_draft"].where(
            ~((table["example_id"] == "p0") & (table["position"] == 3)), float("nan")
        )
    )
    less = replayed(table[table["example_id"] != "p0"], rows())["sps-k2"]["estimate"]
    assert less != pytest.approx(whole)
    for part in (cut, unknown):
        assert replayed(part, rows())["sps-k2"]["estimate"] == pytest.approx(less)


def test_only_arms_that_draft_with_the_model_under_chens_rule_are_told() -> None:
    assert set(replayed(evidence(), rows(drafter="lookup"))) == {"sps-k5"}
    assert set(replayed(evidence(), rows(policy="stop-below"))) == {"sps-k5"}
    assert replayed(evidence().assign(log_draft=float("nan")), rows()) == {}
    assert replayed(evidence().iloc[:0], rows()) == {}

"""Tokens per loop from what a run recorded of its ArS texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from support.synthetic_run import make_run

from spsbench.law.text_loops import anchored, loops_over
from spsbench.stats.predict.costs import replayed
from spsbench.stats.predict.factors import residual_cause, residual_factors
from spsbench.stats.summary import summarise
from spsbench.store import read_frames
from spsbench.store.schema import read_run
from spsbench.store.summary_types import ArmRow

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


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = make_run(tmp_path_factory.mktemp("run") / "run", ks=(0, 4), samplings=("nucleus",))
    frames = read_frames(directory)
    return summarise(frames.samples, frames.loops, read_run(directory), frames.evidence)


def test_the_factors_make_up_measured_over_predicted(summary: Any) -> None:
    """Of a run whose tests differ from prompt to prompt; its alpha is put in by hand."""
    arm = {**summary["prediction"]["arms"][0], "alpha": 0.72}
    why = summary["why"][0]
    found = residual_factors(arm, why)
    predicted = sum(0.72**i for i in range(5)) / (4 * arm["c"] + 1)
    assert math.prod(one["factor"] for one in found) == pytest.approx(arm["measured"] / predicted)
    sizes = [abs(math.log(one["factor"])) for one in found]
    assert sizes == sorted(sizes, reverse=True)


def test_nothing_is_explained_without_alpha_or_phases(summary: Any) -> None:
    arm, why = summary["prediction"]["arms"][0], summary["why"][0]
    assert residual_factors({**arm, "alpha": None}, why) == []
    unseen = [{**why["factors"][0], "name": "loop_time"}]
    assert residual_factors({**arm, "alpha": 0.7}, {**why, "factors": unseen}) == []


def test_the_cause_pulls_the_way_that_the_residual_goes() -> None:
    factors: Any = [
        {"name": "verifying", "title": "verifying", "factor": 0.6},
        {"name": "selection", "title": "selection", "factor": 1.2},
    ]
    assert residual_cause(-0.4, factors) == factors[0]
    assert residual_cause(0.1, factors) == factors[1]
    assert residual_cause(None, factors) is None
    assert residual_cause(0.0, factors) is None
    assert residual_cause(0.1, factors[:1]) is None

"""Measured over predicted is the product of what the formula takes for 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import make_run

from spsbench.stats.predict.factors import residual_cause, residual_factors
from spsbench.stats.summary import summarise
from spsbench.store import read_frames
from spsbench.store.opening import read_run


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

"""What scoring records of a metric without sums is what a report looks up."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd
import pytest

from spsbench.base.records import Generation, Prompt, Sample
from spsbench.runner.finishing import _corpus_figures
from spsbench.stats.corpus import CorpusMetric
from spsbench.tasks.metrics.kind import MetricKind
from spsbench.tasks.task import Task

COUNT = MetricKind("count", "Outputs.", corpus=lambda prompts, outputs, references: float(len(outputs)))
UNSCORED = "e9"


class _Counted:
    """The part of a task that scores; one of its prompts has no reference."""

    metrics = (COUNT,)

    def is_scored(self, prompt: Prompt) -> bool:
        return prompt.example_id != UNSCORED

    def corpus_figure(self, kind: MetricKind, prompts: list[Prompt], texts: list[str]) -> float:
        return float(len(texts))


def _sample(example_id: str, arm: str) -> Sample:
    return Sample(example_id, 0, arm, 3, Generation([1], "a", None, 0.1, 0.1, "stop"))


def _frame(samples: list[Sample]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "example_id": sample.example_id,
            "sample_index": sample.sample_index,
            "scores": None if sample.example_id == UNSCORED else {"count:outputs": 1.0},
        }
        for sample in samples
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("of_sps", "shared"), [(3, 3), (2, 2)])
def test_recorded_figures_are_found_by_the_outputs_they_cover(of_sps: int, shared: int) -> None:
    names = {"ars": ["e0", "e1", "e2", UNSCORED], "sps": [*(f"e{i}" for i in range(of_sps)), UNSCORED]}
    by_arm = {arm: [_sample(name, arm) for name in own] for arm, own in names.items()}
    references = {name: Prompt(name, "", (1,), "") for name in names["ars"]}
    done = [sample for own in by_arm.values() for sample in own]
    recorded = _corpus_figures(cast("Task", _Counted()), done, references)["count"]
    metric = CorpusMetric(("count:outputs",), None, recorded)
    frames = {arm: _frame(own) for arm, own in by_arm.items()}
    found = {arm: metric.of_record(frame, arm) for arm, frame in frames.items()}
    assert {arm: figure and figure["figure"] for arm, figure in found.items()} == {"ars": 3.0, "sps": of_sps}
    common = metric.on_common(frames)
    assert (common.prompts, common.by_arm) == (shared, {"ars": shared, "sps": shared})
    assert metric.of_record(frames["ars"].iloc[1:], "ars") is None

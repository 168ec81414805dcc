"""Means of scores and pass@k per arm."""

from __future__ import annotations

import json
from collections.abc import Callable

import pandas as pd
import pytest

from spsbench.stats.parity import metrics

Make = Callable[..., pd.DataFrame]


def test_every_score_is_averaged_over_sequences(make_samples: Make) -> None:
    scores = [{"rouge1": 0.2, "rouge2": 0.1}, {"rouge1": 0.4, "rouge2": 0.3}]
    assert metrics(make_samples([1, 1], [5, 5], scores=scores)) == pytest.approx(
        {"rouge1": 0.3, "rouge2": 0.2}
    )


def test_rows_without_scores_are_left_out_of_the_mean(make_samples: Make) -> None:
    scores = [{"rouge2": 0.1}, None, {"rouge2": None}, {}, json.dumps({"rouge2": 0.5})]
    assert metrics(make_samples([1] * 5, [5] * 5, scores=scores)) == pytest.approx({"rouge2": 0.3})


def test_no_scores_and_no_rows_have_no_metrics(make_samples: Make) -> None:
    assert metrics(make_samples([1], [5], scores=[{}])) == {}
    assert metrics(make_samples([], [])) == {}


def test_passed_becomes_pass_at_k_per_problem(make_samples: Make) -> None:
    """Two problems with ten samples, 1 and 0 passed: pass@1 .05, pass@10 .5, no pass@100."""
    scores = [{"passed": float(i == 3)} for i in range(20)]
    result = metrics(make_samples([1] * 20, [5] * 20, scores=scores, samples_per_prompt=10))
    assert result == {"pass@1": pytest.approx(0.05), "pass@10": pytest.approx(0.5), "pass@100": None}

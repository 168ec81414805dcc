"""The evaluate.Metric works offline and agrees with the plain function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spsbench
from spsbench.tasks.metrics.builtin import ROUGE_TYPES, mean_rouge, rouge

PREDICTIONS = ["the mayor opened a school", "", "rain fell\non the town"]
REFERENCES = ["a mayor has opened the school", "some words", "on the town\nrain fell"]


@pytest.fixture(scope="module")
def computed() -> dict[str, object]:
    from spsbench.tasks.metrics.rouge_metric import Rouge

    answer: dict[str, object] = Rouge().compute(predictions=PREDICTIONS, references=REFERENCES)
    return answer


def test_agrees_with_the_function(computed: dict[str, object]) -> None:
    values = [rouge(p, r) for p, r in zip(PREDICTIONS, REFERENCES, strict=True)]
    assert {name: computed[name] for name in ROUGE_TYPES} == pytest.approx(mean_rouge(values))


def test_keeps_values_per_example(computed: dict[str, object]) -> None:
    assert computed["rouge2_per_example"] == [
        rouge(p, r)["rouge2"] for p, r in zip(PREDICTIONS, REFERENCES, strict=True)
    ]


def test_the_fast_path_does_not_import_evaluate() -> None:
    program = (
        "import sys; from spsbench.tasks.metrics.builtin import rouge; rouge('a', 'a');"
        "sys.exit('evaluate' in sys.modules or 'datasets' in sys.modules)"
    )
    root = Path(spsbench.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0

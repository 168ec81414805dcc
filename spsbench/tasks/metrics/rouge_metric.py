"""ROUGE as an ``evaluate.Metric`` that needs no hub.

``evaluate.load("rouge")`` downloads its script; this local subclass does the same work offline.
Importing ``evaluate`` costs seconds, so nothing imports this module unless it wants the metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from spsbench.tasks.metrics.builtin import ROUGE_TYPES, mean_rouge, rouge


class Rouge(evaluate.Metric):  # type: ignore[misc]  # evaluate ships no types
    """ROUGE F1 with stemming: ``compute(predictions=..., references=...)``.

    The answer maps each ROUGE type to its plain mean and ``<type>_per_example`` to the list of
    values in the order of the input. Data stay in memory: no cache file, no lock.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"keep_in_memory": True, **options})

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="ROUGE F1 (rouge_score, Porter stemmer, plain mean), computed offline.",
            citation="Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries.",
            inputs_description="predictions and references: lists of strings of equal length.",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        pairs = zip(predictions, references, strict=True)
        values = [rouge(prediction, reference) for prediction, reference in pairs]
        per_example = {f"{name}_per_example": [value[name] for value in values] for name in ROUGE_TYPES}
        return {**mean_rouge(values), **per_example}

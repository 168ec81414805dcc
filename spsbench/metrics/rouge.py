"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum by the ``rouge_score`` package.

F1 with the Porter stemmer and the plain mean over examples, as usual for XSum. The package's own
aggregator resamples at random and therefore never makes a headline. ``rouge_metric`` wraps this
very function for the ``evaluate`` library.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from spsbench.metrics.kind import MetricKind, Texts

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(prediction: str, reference: str) -> dict[str, float]:
    """F1 of each ROUGE type, in [0, 1], of one prediction against one reference.

    ROUGE-Lsum takes the lines of a text for its sentences. An empty prediction scores 0.
    """
    scores = _scorer().score(reference, prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}


def mean_rouge(per_example: Sequence[dict[str, float]]) -> dict[str, float]:
    """Plain mean of each ROUGE type over examples."""
    if not per_example:
        raise ValueError("mean_rouge needs at least one example")
    return {name: sum(scores[name] for scores in per_example) / len(per_example) for name in ROUGE_TYPES}


@lru_cache(maxsize=1)
def _scorer() -> Any:
    # Imported here: rouge_score pulls in nltk, which `spsbench --help` should not pay for.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(ROUGE_TYPES), use_stemmer=True)


# The metrics of a task score one batch after another: each text is read once for all four.
_remembered = lru_cache(maxsize=1024)(rouge)


def _kind(name: str) -> MetricKind:
    def score(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
        return [_remembered(*pair)[name] for pair in zip(outputs, references, strict=True)]

    of = {"rougeL": "longest common subsequence", "rougeLsum": "longest common subsequence by lines"}
    overlap = of.get(name, f"{name.removeprefix('rouge')}-grams")
    return MetricKind(name, f"F1 of {overlap} with the reference, Porter stemmer.", score)


KINDS = tuple(map(_kind, ROUGE_TYPES))

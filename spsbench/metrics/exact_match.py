"""Exact match: the output is the reference, except for white space around it."""

from __future__ import annotations

from spsbench.metrics.kind import MetricKind, Texts


def exact_match(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    """1 where output and reference are the same text, white space around them aside, else 0."""
    pairs = zip(outputs, references, strict=True)
    return [float(output.strip() == reference.strip()) for output, reference in pairs]


KIND = MetricKind(
    "exact_match",
    "1 if the output is the reference, white space around it aside, else 0.",
    exact_match,
    margin=0.02,
)

"""The final number: of an answer that reasons first, only what it arrives at counts."""

from __future__ import annotations

import re

from spsbench.metrics.exact_match import exact_match
from spsbench.metrics.kind import MetricKind, Texts

MARK = "####"
"""What GSM8K writes before a solution's result."""

_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")


def final_number(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    """1 where output and reference arrive at the same number, else 0; see ``_final``.

    A reference without a number is compared as a text.
    """
    return [_same(*texts) for texts in zip(prompts, outputs, references, strict=True)]


def _same(prompt: str, output: str, reference: str) -> float:
    wanted = _final(reference)
    if wanted is None:
        return exact_match([prompt], [output], [reference])[0]
    return float(_final(output) == wanted)


def _final(text: str) -> float | None:
    """The first number after the mark, else the last in the text; thousands may be parted by commas."""
    _, marked, result = text.partition(MARK)
    numbers = _NUMBER.findall(result if marked else text)
    return float(numbers[0 if marked else -1].replace(",", "")) if numbers else None


KIND = MetricKind(
    "final_number",
    "1 if the output arrives at the reference's number (after ####, else the last), else 0.",
    final_number,
    margin=0.02,
)

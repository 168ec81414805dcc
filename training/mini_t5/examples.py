"""Training examples: what the encoder reads, with T5's prefix of the task, and what the decoder answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from training.mini_t5.english import english
from training.mini_t5.highlights import make_report
from training.mini_t5.sentences import Author
from training.mini_t5.velmar import velmar

TRANSLATE = "translate English to Velmar: {source}"
SUMMARIZE = "summarize: {article}"

SUMMARY_SHARE = 0.35


@dataclass(frozen=True)
class Example:
    """A source with its prefix, and the answer."""

    source: str
    target: str


def draw_example(rng: random.Random, summaries: float = SUMMARY_SHARE) -> Example:
    """One example of the training part, with the chance ``summaries`` a document with its highlights."""
    if rng.random() < summaries:
        report = make_report("train", rng)
        return Example(SUMMARIZE.format(article=report.article), report.highlights)
    sentence = Author("train", rng).sentence()
    return Example(TRANSLATE.format(source=english(sentence)), velmar(sentence))

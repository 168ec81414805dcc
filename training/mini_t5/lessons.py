"""What the drafts learn from: examples with the target's own distribution behind every token of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import T5ForConditionalGeneration

from training.batches import cut
from training.corpus import Corpus
from training.lessons import KEPT
from training.mini_t5.batches import Batch, Batches
from training.mini_t5.train import answer_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_TOKENS = 8_192


@dataclass(frozen=True)
class Lessons:
    """A corpus and what the target said about its answers, at temperature 1.

    Attributes:
        batches: the corpus.
        tokens: the target's ``KEPT`` likeliest tokens for each answered position, uint16 [answers, KEPT].
        logs: their log-probabilities, float16 [answers, KEPT].
    """

    batches: Batches
    tokens: NDArray[np.uint16]
    logs: NDArray[np.float16]

    def lesson(self, rows: NDArray[np.int64]) -> tuple[Batch, torch.Tensor, torch.Tensor]:
        """The examples ``rows`` with the target's tokens and log-probabilities, both [answers, KEPT]."""
        places = self.batches.answer_places(rows)
        tokens = torch.from_numpy(self.tokens[places].astype(np.int64))
        return self.batches.batch(rows), tokens, torch.from_numpy(self.logs[places].astype(np.float32))


def teach(corpus: Corpus, target: T5ForConditionalGeneration) -> Lessons:
    """Ask the target about every answer of the corpus."""
    batches = Batches(corpus)
    best = np.zeros((int(corpus.answers.sum()), KEPT), np.uint16)
    logs = np.zeros(best.shape, np.float16)
    for rows in cut(np.arange(len(corpus)), corpus.lengths, BATCH_TOKENS):
        with torch.inference_mode():
            found = answer_logits(target, batches.batch(rows)).log_softmax(-1).topk(KEPT)
        places = batches.answer_places(rows)
        best[places], logs[places] = found.indices.numpy(), found.values.numpy()
    return Lessons(batches, best, logs)

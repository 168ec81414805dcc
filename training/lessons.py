"""What a draft learns from: contexts with the target's own distribution wherever something is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from training.batches import cut
from training.corpus import Corpus

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import LlamaForCausalLM

KEPT = 16
BATCH_TOKENS = 8_192


@dataclass(frozen=True)
class Lesson:
    """A batch of contexts.

    Attributes:
        ids: token ids [rows, n + 1], padded with 0.
        answers: where the next token is an answer, bool [rows, n].
        prompts: where the next token is one of the prompt's and is to be learnt as well, bool [rows, n].
        tokens: the target's likeliest tokens of each answer [answers, KEPT].
        logs: their log-probabilities [answers, KEPT].
    """

    ids: torch.Tensor
    answers: torch.Tensor
    prompts: torch.Tensor
    tokens: torch.Tensor
    logs: torch.Tensor


@dataclass(frozen=True)
class Lessons:
    """A corpus and what the target said about its answers, at temperature 1.

    Attributes:
        corpus: the contexts.
        tokens: the target's ``KEPT`` likeliest tokens for each answered position, uint16 [answers, KEPT].
        logs: their log-probabilities, float16 [answers, KEPT].
    """

    corpus: Corpus
    tokens: NDArray[np.uint16]
    logs: NDArray[np.float16]

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """The row of ``tokens`` for each answered place of the corpus."""
        return np.cumsum(self.corpus.answers) - 1

    def lesson(self, rows: NDArray[np.int64], prompt_share: float, generator: np.random.Generator) -> Lesson:
        """The contexts ``rows`` with a share of their prompts' tokens, drawn anew at each call."""
        ids, asked, inside, columns = _padded(self.corpus, rows)
        prompts = inside & ~asked & (generator.random(asked.shape) < prompt_share)
        places = self._places[columns[asked]]
        return Lesson(
            torch.from_numpy(ids),
            torch.from_numpy(asked[:, 1:]),
            torch.from_numpy(prompts[:, 1:]),
            torch.from_numpy(self.tokens[places].astype(np.int64)),
            torch.from_numpy(self.logs[places].astype(np.float32)),
        )


def teach(corpus: Corpus, target: LlamaForCausalLM) -> Lessons:
    """Ask the target about every answer of the corpus; its weights are best in bfloat16."""
    places = np.cumsum(corpus.answers) - 1
    tokens = np.zeros((int(corpus.answers.sum()), KEPT), np.uint16)
    logs = np.zeros(tokens.shape, np.float16)
    for rows in cut(np.arange(len(corpus)), corpus.lengths, BATCH_TOKENS):
        ids, asked, _, columns = _padded(corpus, rows)
        with torch.inference_mode():
            states = target.model(input_ids=torch.from_numpy(ids[:, :-1]), use_cache=False).last_hidden_state
            logits = target.lm_head(states[torch.from_numpy(asked[:, 1:])]).float()
            best = logits.log_softmax(-1).topk(KEPT)
        at = places[columns[asked]]
        tokens[at], logs[at] = best.indices.numpy(), best.values.numpy()
    return Lessons(corpus, tokens, logs)


def joined(parts: Sequence[Lessons]) -> Lessons:
    """Several lessons as one, in their order."""
    lengths = np.concatenate([part.corpus.lengths for part in parts])
    corpus = Corpus(
        np.concatenate([part.corpus.ids for part in parts]),
        np.concatenate([part.corpus.answers for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]),
    )
    tokens = np.concatenate([part.tokens for part in parts])
    return Lessons(corpus, tokens, np.concatenate([part.logs for part in parts]))


def _padded(
    corpus: Corpus, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Ids, answered, inside and places in the corpus of some contexts, each [rows, n].

    The first token follows nothing, so nobody is asked for it.
    """
    width = np.arange(int(corpus.lengths[rows].max()))
    inside = width < corpus.lengths[rows][:, None]
    columns = np.where(inside, corpus.starts[rows][:, None] + width, 0)
    ids = np.where(inside, corpus.ids[columns], 0).astype(np.int64)
    later = inside & (width > 0)
    return ids, corpus.answers[columns] & later, later, columns

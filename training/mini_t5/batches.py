"""Batches of examples of similar length, padded for encoder and decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from training.batches import row_groups
from training.corpus import Corpus
from training.mini_t5.tokenizer import PAD_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Some examples.

    Attributes:
        sources: [rows, s], padded.
        mask: 1 where a source is, 0 where padding, [rows, s].
        inputs: what the decoder reads, from its start token on [rows, n], padded.
        labels: the token that follows each input [rows, n].
        inside: where a label is one, bool [rows, n].
    """

    sources: torch.Tensor
    mask: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor
    inside: torch.Tensor

    @property
    def tokens(self) -> int:
        """Places of encoder and decoder, padding included."""
        return self.sources.numel() + self.labels.numel()


class Batches:
    """Batches of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def share(self, tokens: int, seed: int, rank: int = 0, workers: int = 1) -> Iterator[Batch]:
        """Batches without end for one of several workers: every ``workers``-th, from ``rank`` on.

        ``tokens`` bounds a batch, padding aside; the seed fixes the order.
        """
        groups = row_groups(self.corpus.lengths, tokens, np.random.default_rng(seed))
        return map(self.batch, islice(groups, rank, None, workers))

    @cached_property
    def splits(self) -> NDArray[np.int64]:
        """Where the answer of each example begins in the corpus."""
        asked = np.add.reduceat(self.corpus.answers.astype(np.int64), self.corpus.starts[:-1])
        return self.corpus.starts[1:] - asked

    @cached_property
    def _answers_before(self) -> NDArray[np.int64]:
        return np.cumsum(self.corpus.answers) - 1

    def answer_places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each label of the batch of ``rows``, which of the corpus's answered tokens it is."""
        ends = self.corpus.starts[1:]
        return np.concatenate([self._answers_before[self.splits[row] : ends[row]] for row in rows])

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The examples ``rows``."""
        sources, mask = _padded(self.corpus.ids, self.corpus.starts[:-1][rows], self.splits[rows])
        labels, inside = _padded(self.corpus.ids, self.splits[rows], self.corpus.starts[1:][rows])
        inputs = torch.cat([torch.full_like(labels[:, :1], PAD_ID), labels[:, :-1]], dim=1)
        return Batch(sources, mask.long(), inputs, labels, inside)


def _padded(
    ids: NDArray[np.uint16], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stretches of ``ids`` as rows, and where they are, both [rows, longest]."""
    columns = starts[:, None] + np.arange(int((ends - starts).max()))
    inside = columns < ends[:, None]
    rows = np.where(inside, ids[np.where(inside, columns, 0)].astype(np.int64), PAD_ID)
    return torch.from_numpy(rows), torch.from_numpy(inside)

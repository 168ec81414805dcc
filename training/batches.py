"""Batches of contexts of similar length, cut from the flat corpus on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from training.corpus import PROMPT_WEIGHT, Corpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

POOL = 4096


@dataclass(frozen=True)
class Batch:
    """Inputs [rows, n], the tokens that follow them and the weight of each in the loss."""

    inputs: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


def row_groups(
    lengths: NDArray[np.int64], tokens: int, generator: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Contexts for one batch after the other, without end: pools, sorted by length, cut, shuffled."""
    while True:
        order = generator.permutation(len(lengths))
        for begin in range(0, len(order), POOL):
            groups = cut(order[begin : begin + POOL], lengths, tokens)
            for index in generator.permutation(len(groups)):
                yield groups[index]


def cut(pool: NDArray[np.int64], lengths: NDArray[np.int64], tokens: int) -> list[NDArray[np.int64]]:
    """A pool of contexts by length, in groups of at most ``tokens`` tokens with their padding."""
    by_length = pool[np.argsort(lengths[pool], kind="stable")]
    groups, begin = [], 0
    for end, length in enumerate(lengths[by_length].tolist()):
        if end > begin and (end + 1 - begin) * length > tokens:
            groups.append(by_length[begin:end])
            begin = end
    return [*groups, by_length[begin:]]


class Batches:
    """The corpus on one device, handed out in an order that the seed fixes."""

    def __init__(self, corpus: Corpus, tokens: int, seed: int, device: str) -> None:
        self.starts, self.lengths, self.tokens = corpus.starts, corpus.lengths, tokens
        self.generator = np.random.default_rng(seed)
        self.device = device
        self.ids = torch.from_numpy(corpus.ids.astype(np.int32)).to(device)
        self.answers = torch.from_numpy(corpus.answers).to(device)

    def __iter__(self) -> Iterator[Batch]:
        """Batches without end."""
        return map(self._gather, row_groups(self.lengths, self.tokens, self.generator))

    def _gather(self, rows: NDArray[np.int64]) -> Batch:
        starts = torch.from_numpy(self.starts[rows]).to(self.device)[:, None]
        lengths = torch.from_numpy(self.lengths[rows]).to(self.device)[:, None]
        columns = torch.arange(int(self.lengths[rows].max()), device=self.device)[None]
        inside = columns < lengths
        places = torch.where(inside, starts + columns, 0)
        ids = torch.where(inside, self.ids[places], 0).long()
        weights = torch.where(self.answers[places], 1.0, PROMPT_WEIGHT) * inside
        return Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:])

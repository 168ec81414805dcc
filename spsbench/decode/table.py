"""A model given by a table of probabilities, for exact proofs and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from spsbench.decode.protocols import read_prompt

RowFunction = Callable[[tuple[int, ...]], Sequence[float]]


class TableModel:
    """Logits of a function from contexts to probability rows.

    Rows are memoized: each context is evaluated once.

    Args:
        rows: maps a context (all tokens so far) to V probabilities; zeros are allowed.
        vocab_size: V.
        dtype: of the logits; float64 in exact proofs.
    """

    def __init__(self, rows: RowFunction, vocab_size: int, dtype: torch.dtype = torch.float64) -> None:
        self.vocab_size = vocab_size
        self._rows = rows
        self._dtype = dtype
        self._fed: list[int] = []
        self._known: dict[tuple[int, ...], Tensor] = {}

    @property
    def length(self) -> int:
        """Number of tokens in the current context."""
        return len(self._fed)

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt)

    def room_behind(self, prompt: Sequence[int]) -> int:
        return 1 << 30

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._fed += tokens.tolist()
        end = len(self._fed)
        return torch.stack([self._logits(tuple(self._fed[:i])) for i in range(end - last + 1, end + 1)])

    def rollback(self, length: int) -> None:
        del self._fed[length:]

    def _logits(self, context: tuple[int, ...]) -> Tensor:
        if context not in self._known:
            self._known[context] = torch.tensor(self._rows(context), dtype=self._dtype).log()
        return self._known[context]


_REMEMBERED = 4096
"""Rows of a function that are computed once: an enumeration builds its tables again for every question."""


@lru_cache(maxsize=64)
def random_rows(vocab_size: int, seed: int, sharpness: float = 1.0) -> RowFunction:
    """Random but fixed rows: the same context gives the same probabilities in every process.

    Args:
        vocab_size: V.
        seed: models with different seeds differ.
        sharpness: scale of the Gaussian logits; larger is more peaked.
    """

    @lru_cache(maxsize=_REMEMBERED)
    def row(context: tuple[int, ...]) -> Sequence[float]:
        generator = torch.Generator().manual_seed(_mix(seed, *context))
        logits = torch.randn(vocab_size, dtype=torch.float64, generator=generator) * sharpness
        return tuple(logits.softmax(-1).tolist())

    return row


def _mix(*numbers: int) -> int:
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number + 0x9E3779B9)) * 0xBF58476D1CE4E5B9 % (1 << 63)
    return state

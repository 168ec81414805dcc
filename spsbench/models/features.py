"""The last hidden states of a model's cached tokens: what its output head multiplies."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_BLOCK = 256


class HiddenStates(Protocol):
    """Who keeps the states of the tokens that it has cached."""

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        ...

    def features(self, start: int, end: int) -> Tensor:
        """[end - start, hidden] after the final norm, of the cached tokens from ``start`` on."""
        ...


class FeatureRows:
    """Rows by position, in a buffer with room to grow; like a cache, it is rolled back by writing earlier."""

    def __init__(self) -> None:
        self._rows = torch.empty(0, 0)

    def write(self, start: int, rows: Tensor) -> None:
        """Put rows [n, hidden] at ``start`` and after it."""
        end = start + len(rows)
        if end > len(self._rows):
            grown = rows.new_empty(max(-(-end // _BLOCK) * _BLOCK, 2 * start), rows.shape[1])
            if start:
                grown[:start] = self._rows[:start]
            self._rows = grown
        self._rows.narrow(0, start, len(rows)).copy_(rows)

    def read(self, start: int, end: int) -> Tensor:
        """[end - start, hidden]; a view."""
        return self._rows.narrow(0, start, end - start)

"""Logits of some tokens among those of all."""

from __future__ import annotations

import torch
from torch import Tensor


class VocabularyRows:
    """Puts logits of m tokens into rows of V, minus infinity elsewhere.

    Args:
        ids: [m] which tokens, ascending.
    """

    def __init__(self, ids: Tensor, vocab_size: int) -> None:
        self._ids, self._vocab_size = ids, vocab_size
        self._rows = torch.empty(0, vocab_size, device=ids.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """[n, V] of [n, m]; overwritten by the next call."""
        if len(self._ids) == self._vocab_size:
            return logits
        n = len(logits)
        if n > len(self._rows) or logits.dtype != self._rows.dtype:
            with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
                self._rows = logits.new_full((n, self._vocab_size), float("-inf"))
        rows = self._rows.narrow(0, 0, n)
        return rows.index_copy_(1, self._ids, logits)

"""What decoding needs from a language model: score new tokens, roll back."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LanguageModel(Protocol):
    """A causal language model that caches the tokens it has scored (batch size 1).

    Attributes:
        vocab_size: V, the width of the logits.
        context_window: longest sequence it can score, in tokens.
    """

    vocab_size: int
    context_window: int

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        ...

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """Append tokens to the cache and return the logits after the last few.

        Args:
            tokens: [n] int64, n >= 1.
            last: number of logit rows to return, 1 to n.

        Returns:
            [last, V] logits; row i predicts the token after token n - last + i.
        """
        ...

    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` tokens; no effect if fewer are cached."""
        ...

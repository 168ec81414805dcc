"""What decoding needs of a language model: score the next tokens, and forget some."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LanguageModel(Protocol):
    """A causal language model with a memory of the tokens it was fed (batch size 1).

    Attributes:
        vocab_size: V, the width of the logits.
        context_window: the longest sequence it can score, in tokens.
    """

    vocab_size: int
    context_window: int

    @property
    def length(self) -> int:
        """How many tokens the memory holds."""
        ...

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """Feed tokens behind the memory and return the logits that follow the last few.

        Args:
            tokens: [n] int64, n >= 1.
            last: how many logit rows are wanted, 1 to n.

        Returns:
            [last, V] logits; row i is the prediction behind token n - last + i.
        """
        ...

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens; without effect if it holds fewer."""
        ...

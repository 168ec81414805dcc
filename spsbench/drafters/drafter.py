"""What decoding needs of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from spsbench.core.rejection import Draft


class Drafter(Protocol):
    """Proposes tokens behind a sequence."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Read the prompt, or whatever part of it should not be charged to the first loop."""
        ...

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Propose up to k tokens behind ``tokens``.

        Args:
            tokens: the whole sequence so far.
            k: lookahead, at least 1.
            u: [k] uniform numbers in [0, 1), one a token.
        """
        ...

    def rollback(self, length: int) -> None:
        """Forget what was read of the sequence behind its first ``length`` tokens."""
        ...

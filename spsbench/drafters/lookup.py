"""Prompt lookup: the text repeats itself, so propose what followed the last time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import by_proposals
from spsbench.drafters.registry import Context
from spsbench.plugins import Options


class LookupDrafter:
    """Finds the last n tokens earlier in the sequence and proposes the tokens that followed them.

    Saxena 2023 (prompt lookup decoding): the longest n-gram first, and of its earlier occurrences the most
    recent. A copy is certain of each token, so that the draft is a point mass. It ends where the text ends:
    there may be fewer than K tokens, or none.

    Aggressive copying (Ge et al. 2022, input-guided decoding) is the same with a K as long as the copy goes.

    Args:
        max_n: the longest n-gram that is looked for.
        min_n: the shortest, at least 1.
    """

    def __init__(self, max_n: int, min_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._behind: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Index the prompt, which is known before the first loop."""
        self._behind, self._indexed = {}, 0
        self._index(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Copy up to k tokens; the numbers are left alone."""
        self._index(tokens)
        copied = self._found(tokens, k)
        return Draft(torch.tensor(copied, dtype=torch.int64, device=u.device), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Nothing to forget: only decided tokens are indexed, and the next draft does it."""

    forced = by_proposals

    def _index(self, tokens: Sequence[int]) -> None:
        """Remember the place after each n-gram that a token follows; later ones replace earlier ones."""
        for end in range(self._indexed + 1, len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._behind[tuple(tokens[end - n : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _found(self, tokens: Sequence[int], k: int) -> list[int]:
        for n in self._sizes:
            if n < len(tokens):
                place = self._behind.get(tuple(tokens[-n:]))
                if place is not None:
                    return list(tokens[place : place + k])
        return []


def build(options: Options, context: Context) -> Drafter:
    return LookupDrafter(int(options["max_n"]), int(options["min_n"]))

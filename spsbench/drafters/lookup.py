"""Prompt lookup: the text repeats itself, so propose what followed the last time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spsbench.base.plugins import Options
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import by_proposals
from spsbench.drafters.registry import TREE, Context
from spsbench.drafters.shape import Shape, shape_of
from spsbench.drafters.tree import merged


class LookupDrafter:
    """Finds the last n tokens earlier in the sequence and proposes the tokens that followed them.

    Saxena 2023 (prompt lookup decoding): the longest n-gram first, and of its earlier occurrences the most
    recent. A copy is certain of each token, so that the draft is a point mass. It ends where the text ends:
    there may be fewer than K tokens, or none.

    A tree has the continuations of earlier occurrences too, the latest one first, and of shorter n-grams.

    Aggressive copying (Ge et al. 2022, input-guided decoding) is the same with a K as long as the copy goes.

    Args:
        max_n: the longest n-gram that is looked for.
        min_n: the shortest, at least 1.
        shape: of trees; None for chains.
        depth: of a dynamic tree.
    """

    def __init__(self, max_n: int, min_n: int, shape: Shape | None = None, depth: int = 0) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._shape, self._depth = shape, depth
        self._behind: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Index the prompt, which is known before the first loop."""
        self._behind, self._indexed = {}, 0
        self._index(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Copy up to k tokens; no random numbers are used."""
        self._index(tokens)
        if self._shape is not None:
            return merged(self._matches(tokens, self._shape.depth(self._depth)), self._shape, k, u)
        copied = next(self._matches(tokens, k), ())
        return Draft(torch.tensor(copied, dtype=torch.int64, device=u.device), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Do nothing: only decided tokens are indexed, by the next draft."""

    forced = by_proposals

    def _index(self, tokens: Sequence[int]) -> None:
        """Remember the places after each n-gram that a token follows."""
        for end in range(self._indexed + 1, len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._behind.setdefault(tuple(tokens[end - n : end]), []).append(end)
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _matches(self, tokens: Sequence[int], k: int) -> Iterator[Sequence[int]]:
        for n in self._sizes:
            if n < len(tokens):
                for place in reversed(self._behind.get(tuple(tokens[-n:]), ())):
                    yield tokens[place : place + k]


def build(options: Options, context: Context) -> Drafter:
    shape = shape_of(str(options[TREE]), "--tree")
    return LookupDrafter(int(options["max_n"]), int(options["min_n"]), shape, context.k)

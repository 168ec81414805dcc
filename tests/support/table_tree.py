"""A tree model given by a table, a search with it, and beam search written down naively."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spsbench.base.records import BeamParams, FinishReason, Hypothesis
from spsbench.decode.beam import (
    BeamLoop,
    BeamSearch,
    DraftSearch,
    Ends,
    Node,
    TreeModel,
    beam_search,
    beam_speculative,
)
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.law.enumeration import RowFunction

PROMPT = (3, 1)
EOS = 0


class TableTree:
    """Rows of a function from contexts; refuses to read a node twice, or after one that is not read."""

    def __init__(self, rows: RowFunction) -> None:
        self.rows, self.passes = rows, 0
        self._prompt: tuple[int, ...] = ()
        self._read: set[Node] = set()
        self._known: dict[tuple[int, ...], Sequence[float]] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        self._prompt, self._read, self.passes = tuple(prompt), set(), 0

    def score(self, nodes: Sequence[Node]) -> Tensor:
        assert len(set(nodes)) == len(nodes)
        assert not self._read & set(nodes)
        self.passes += 1
        for node in nodes:
            above: Node | None = node
            while above is not None:
                self._read.add(above)
                above = above.parent
        return torch.tensor([self._row(node) for node in nodes], dtype=torch.float64).log()

    def keep(self, nodes: Sequence[Node]) -> None:
        kept = set()
        for node in nodes:
            above = node.parent
            while above is not None:
                kept.add(above)
                above = above.parent
        self._read &= kept

    def _row(self, node: Node) -> Sequence[float]:
        context = (*self._prompt, *node.tokens())
        if context not in self._known:
            self._known[context] = self.rows(context)
        return self._known[context]


def near(rows: RowFunction, other: RowFunction, share: float) -> RowFunction:
    """Mixtures of two tables, with this share of the other: a draft as close as one likes."""

    def row(context: tuple[int, ...]) -> Sequence[float]:
        return [(1 - share) * a + share * b for a, b in zip(rows(context), other(context), strict=True)]

    return row


def ends_at(limit: int, eos: int | None = EOS) -> Ends:
    """EOS and a length limit."""

    def ends(parent: Node, token: int) -> FinishReason | None:
        if token == eos:
            return "eos"
        return "length" if parent.depth + 1 == limit else None

    return ends


def searched(
    target: TreeModel,
    params: BeamParams,
    limit: int,
    draft: TreeModel | None = None,
    k: int = 0,
    prompt: Sequence[int] = PROMPT,
    eos: int | None = EOS,
) -> tuple[list[Hypothesis], list[BeamLoop]]:
    """What plain beam search finds, or with a draft its speculation."""
    ends, end_tokens = ends_at(limit, eos), 0 if eos is None else 1
    search = BeamSearch(Node(prompt[-1]), params, ends, end_tokens, limit)
    watch = Stopwatch(FakeClock())
    target.begin(prompt)
    if draft is None:
        return _all(beam_search(target, search, watch), search)
    draft.begin(prompt)
    grow = DraftSearch(params.draft_width, ends, end_tokens)
    return _all(beam_speculative(target, draft, search, k, watch, grow), search)


def _all(loops: Any, search: BeamSearch) -> tuple[list[Hypothesis], list[BeamLoop]]:
    made = list(loops)
    return search.hypotheses, made


def every_hypothesis(rows: RowFunction, limit: int, penalty: float) -> dict[tuple[int, ...], float]:
    """The score of every sequence that ends with EOS or at the limit, by enumeration."""
    found: dict[tuple[int, ...], float] = {}

    def extend(tokens: tuple[int, ...], log_prob: float) -> None:
        for token, probability in enumerate(rows((*PROMPT, *tokens))):
            if probability == 0:
                continue
            longer, total = (*tokens, token), log_prob + math.log(probability)
            if token == EOS or len(longer) == limit:
                found[longer] = total / len(longer) ** penalty
            else:
                extend(longer, total)

    extend((), 0.0)
    return found

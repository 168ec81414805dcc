"""All that a right engine whose drafts vary in length may answer, enumerated, on tables by the last token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.short_drafts import STAYS

Floats = NDArray[np.float64]
BEST = "best"
"""Drafts of the most probable tokens, which end as ``ROW``."""

Laws = tuple[Floats, Floats]
"""[V, V] each: the target's, and what drafts are drawn from and tested with."""

Reported = tuple[float, list[int], list[int], list[list[int]]]
"""A text's chance, its ids, and of each loop how many tokens it accepted and which it drafted."""


def _drafts(
    p: Floats, tested: Floats, last: int, room: int, ends: str, at: float
) -> Iterator[tuple[float, list[int]]]:
    """Every draft behind a token, with its probability."""
    if not room or (ends != STAYS and p[last].max() < at):
        yield 1.0, []
        return
    for token in np.flatnonzero(tested[last]).tolist():
        chance = float(tested[last, token])
        if ends == STAYS and chance < at:
            yield chance, [token]
            continue
        for more, rest in _drafts(p, tested, token, room - 1, ends, at):
            yield chance * more, [token, *rest]


def _loops(q: Floats, p: Floats, last: int, draft: Sequence[int]) -> Iterator[tuple[float, list[int]]]:
    """Everything that a loop emits of a draft, with its probability."""
    if not draft:
        yield from ((float(chance), [token]) for token, chance in enumerate(q[last]))
        return
    accepts = min(1.0, q[last, draft[0]] / p[last, draft[0]])
    for chance, rest in _loops(q, p, draft[0], draft[1:]):
        yield accepts * chance, [draft[0], *rest]
    left = np.maximum(q[last] - p[last], 0.0)
    for token in np.flatnonzero(left):
        yield (1 - accepts) * left[token] / left.sum(), [int(token)]


def every(
    laws: Laws, last: int, most: int, ends: str, k: int, at: float, so_far: Reported = (1.0, [], [], [])
) -> Iterator[Reported]:
    """Every text of so many tokens or a few more behind a token.

    Args:
        laws: see ``Laws``.
        last: the token before.
        most: tokens, after which no loop begins.
        ends: how drafts end, see ``benchmarks.short_drafts``, or ``BEST``.
        k: tokens of a draft at most.
        at: the threshold by which drafts end.
        so_far: what was answered already.
    """
    chance, ids, accepted, drafted = so_far
    if len(ids) >= most:
        yield so_far
        return
    q, p = laws
    tested = np.where(p == p.max(1, keepdims=True), 1.0, 0.0) if ends == BEST else p
    for one, draft in _drafts(p, tested, last, min(k, most - len(ids) - 1), ends, at):
        for other, new in _loops(q, tested, last, draft):
            if one * other > 0:
                more = (chance * one * other, [*ids, *new], [*accepted, len(new) - 1], [*drafted, draft])
                yield from every(laws, new[-1], most, ends, k, at, more)

"""What the loops of two tables do in the long run, exactly: no draw and no assumption of independence.

Target and draft depend on a context, and a context on a token: so texts and loops are Markov chains. In
context s the token x is drafted and accepted with probability min(target, draft), and drawn after a rejection
with probability (target - draft)+; both for modified rejection alone. The rest is products of matrices.
"""

from __future__ import annotations

import math

import numpy as np

from spsbench.simulate.tables import Floats, Tables

_SQUARINGS = 60
_SAME = 1e-14


class Chain:
    """The exact law of texts and loops.

    Args:
        tables: warped, see ``Tables.warped``.

    Attributes:
        text: [S] share of the positions of a target's text that are behind each context.
        overlap: [S] sum of min(target, draft) in each context: the chance that a draft token is accepted.
    """

    def __init__(self, tables: Tables) -> None:
        self._successors = tables.contexts.successors(tables.vocab_size)
        both = np.minimum(tables.target, tables.draft)
        self.overlap: Floats = both.sum(axis=1)
        self._accepted = self._moves(both)
        self._corrected = self._moves(np.maximum(tables.target - tables.draft, 0.0))
        self._written = self._moves(tables.target)
        count = tables.contexts.count
        self.text: Floats = long_run(self._written, np.full(count, 1.0 / count))

    @property
    def alpha(self) -> float:
        """Mean of ``overlap`` over the positions of a target's text: ``alpha_leviathan``."""
        return self.mean(self.overlap)

    def mean(self, values: Floats) -> float:
        """Of one value for each context [S], over the positions of a target's text."""
        return float(self.text @ values)

    @property
    def deviation(self) -> float:
        """Standard deviation of ``overlap`` over the positions of a target's text."""
        return math.sqrt(self.mean((self.overlap - self.alpha) ** 2))

    def tokens_per_loop(self, k: int) -> float:
        """Accepted tokens + 1 of a loop, on average over the loops of an endless text."""
        reached = np.eye(len(self.text))
        ends = np.zeros_like(reached)
        lengths = np.ones(len(self.text))
        for _ in range(k):
            ends += reached @ self._corrected
            reached = reached @ self._accepted
            lengths += reached.sum(axis=1)
        starts = long_run(ends + reached @ self._written, self.text)
        return float(starts @ lengths)

    def _moves(self, weights: Floats) -> Floats:
        """[S, S] weights [S, V] added up by the context that a token leads to."""
        count = len(weights)
        moves = np.zeros((count, count))
        np.add.at(moves, (np.arange(count)[:, None], self._successors), weights)
        return moves


def long_run(moves: Floats, start: Floats) -> Floats:
    """[S] the share of time a chain spends in each state.

    By squaring: chains that take turns between states, or never leave some of them, have an answer too.

    Args:
        moves: [S, S] transition probabilities.
        start: [S] where the chain begins.
    """
    lazy = (moves + np.eye(len(moves))) / 2
    for _ in range(_SQUARINGS):
        lazy = lazy / lazy.sum(axis=1, keepdims=True)
        squared = lazy @ lazy
        done = np.abs(squared - lazy).max() < _SAME
        lazy = squared
        if done:
            break
    share = start @ lazy
    return np.asarray(share / share.sum())

"""What the loops of two tables do in the long run, exactly: no draw and no assumption of independence.

Target and draft depend on a context, and a context on a token: so texts and loops are Markov chains. In
context s the token x is drafted and accepted with probability min(target, draft), and drawn after a rejection
with probability (target - draft)+; both for modified rejection alone. The rest is products of matrices.
"""

from __future__ import annotations

import math

import numpy as np

from spsbench.simulate.tables import Contexts, Floats, Tables

_SQUARINGS = 60
_SAME = 1e-14


class Chain:
    """The exact law of texts and loops.

    Attributes:
        text: [S] share of the positions of a target's text that are after each context.
        overlap: [S] sum of min(target, draft) in each context: the chance that a draft token is accepted.
    """

    def __init__(self, tables: Tables) -> None:
        contexts = tables.contexts
        both = np.minimum(tables.target, tables.draft)
        self.overlap: Floats = both.sum(axis=1)
        self._accepted = contexts.moves(both)
        self._corrected = contexts.moves(np.maximum(tables.target - tables.draft, 0.0))
        self._written = contexts.moves(tables.target)
        self.text: Floats = text_shares(contexts, tables.target)

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
        """Tokens over loops of endless texts of equal length, which begin as ``text`` says.

        A chain may fall into parts that are never left (``--stay 1``). Parts then share the tokens as the
        texts do, not the loops: loops per token are averaged, and the reciprocal is taken last.
        """
        reached = np.eye(len(self.text))
        ends = np.zeros_like(reached)
        lengths = np.ones(len(self.text))
        for _ in range(k):
            ends += reached @ self._corrected
            reached = reached @ self._accepted
            lengths += reached.sum(axis=1)
        limit = limit_matrix(ends + reached @ self._written)
        loops_per_token = 1.0 / (limit @ lengths)
        return float(1.0 / (self.text @ limit @ loops_per_token))


def text_shares(contexts: Contexts, target: Floats) -> Floats:
    """[S] share of the positions of a target's endless text after each context; it begins anywhere alike.

    Args:
        target: [S, V] probabilities.
    """
    share = limit_matrix(contexts.moves(target)).mean(axis=0)
    return np.asarray(share / share.sum())


def limit_matrix(moves: Floats) -> Floats:
    """[S, S] the share of time that a chain spends in each state, for each state to begin in.

    By squaring: chains that take turns between states, or never leave some of them, have an answer too.

    Args:
        moves: [S, S] transition probabilities.
    """
    lazy = (moves + np.eye(len(moves))) / 2
    for _ in range(_SQUARINGS):
        lazy = lazy / lazy.sum(axis=1, keepdims=True)
        squared = lazy @ lazy
        done = np.abs(squared - lazy).max() < _SAME
        lazy = squared
        if done:
            break
    return np.asarray(lazy)

"""Target and draft as tables, one row of probabilities for each context, and what they do in the long run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spsbench.records import SamplingParams

if TYPE_CHECKING:
    from spsbench.simulate.loops import ChainModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Contexts:
    """What the next token depends on: the classes of the last token or of the last two.

    A token's class is its id modulo ``classes``. One class makes one context: the same row everywhere.
    """

    classes: int
    order: int = 1

    @property
    def count(self) -> int:
        """S, how many contexts there are."""
        return int(self.classes**self.order)

    def of(self, tokens: Sequence[int]) -> int:
        """The context after some tokens, at least ``order`` of them."""
        found = 0
        for token in tokens[-self.order :]:
            found = found * self.classes + token % self.classes
        return found

    def tokens_of(self, context: int) -> tuple[int, ...]:
        """``order`` tokens that lead to a context: inverse of ``of``."""
        places = (self.classes**place for place in reversed(range(self.order)))
        return tuple(context // place % self.classes for place in places)

    def successors(self, vocab_size: int) -> Integers:
        """[S, V] the context after each token in each context."""
        known = np.arange(self.count) % self.classes ** (self.order - 1) * self.classes
        return np.asarray(known[:, None] + np.arange(vocab_size) % self.classes)

    def moves(self, weights: Floats) -> Floats:
        """[S, S] weights [S, V] of tokens added up by the context that a token leads to."""
        found = np.zeros((self.count, self.count))
        np.add.at(found, (np.arange(self.count)[:, None], self.successors(weights.shape[1])), weights)
        return found


@dataclass(frozen=True, slots=True)
class Tables:
    """Both models: [S, V] probabilities, each row of which sums to 1."""

    contexts: Contexts
    target: Floats
    draft: Floats

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.target.shape[1])

    def warped(self, sampling: SamplingParams) -> Tables:
        """Both under temperature, top-k and nucleus, as a loop warps their logits."""
        import torch  # what is refused must not wait for it

        from spsbench.decode.sampling import warp

        target, draft = (
            np.asarray(warp(torch.from_numpy(rows).log(), sampling).numpy())
            for rows in (self.target, self.draft)
        )
        return replace(self, target=target, draft=draft)

    def models(self) -> tuple[ChainModel, ChainModel]:
        """Target and draft as language models that a loop can score."""
        from spsbench.simulate.loops import ChainModel

        return ChainModel(self.contexts, self.target), ChainModel(self.contexts, self.draft)


class Chain:
    """The exact law of texts and loops: no draw and no assumption of independence.

    Target and draft depend on a context, and a context on a token: so texts and loops are Markov chains. In
    context s the token x is drafted and accepted with probability min(target, draft), and drawn after a
    rejection with probability (target - draft)+; both for modified rejection alone.

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
    """[S] share of the positions of a target's endless text after each context; it begins anywhere alike."""
    share = limit_matrix(contexts.moves(target)).mean(axis=0)
    return np.asarray(share / share.sum())


def limit_matrix(moves: Floats) -> Floats:
    """[S, S] the share of time that a chain spends in each state, for each state to begin in.

    By squaring: chains that take turns between states, or never leave some of them, have an answer too.

    Args:
        moves: [S, S] transition probabilities.
    """
    lazy = (moves + np.eye(len(moves))) / 2
    for _ in range(60):
        lazy = lazy / lazy.sum(axis=1, keepdims=True)
        squared = lazy @ lazy
        done = np.abs(squared - lazy).max() < 1e-14
        lazy = squared
        if done:
            break
    return np.asarray(lazy)

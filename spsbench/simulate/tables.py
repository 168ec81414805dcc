"""Target and draft as tables: one row of probabilities for each context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spsbench.records import SamplingParams

if TYPE_CHECKING:
    from spsbench.simulate.model import ChainModel

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
    """Both models.

    Attributes:
        target, draft: [S, V] probabilities, each row sums to 1.
    """

    contexts: Contexts
    target: Floats
    draft: Floats

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.target.shape[1])

    def warped(self, sampling: SamplingParams) -> Tables:
        """Both under temperature, top-k and nucleus, as a loop warps their logits."""
        from spsbench.simulate.model import warped  # torch comes with it; see `cli.simulate_question`

        return replace(self, target=warped(self.target, sampling), draft=warped(self.draft, sampling))

    def models(self) -> tuple[ChainModel, ChainModel]:
        """Target and draft as language models that a loop can score."""
        from spsbench.simulate.model import ChainModel

        return ChainModel(self.contexts, self.target), ChainModel(self.contexts, self.draft)

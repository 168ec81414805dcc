"""An engine on tables whose drafts end early, and which may withdraw those that stayed short.

Rows follow from the last token. The prefill gives the first token of a text; a draft ends where the most
probable token of its row is below ``p_min``, and is dropped where it has fewer than ``n_min`` tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Logits [V, V] by the last token, as far as a choice of contexts asks a model for them."""

    logits: torch.Tensor

    def score_uncached(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        return self.logits[tokens[-last:]]

    @property
    def laws(self) -> Floats:
        return self.logits.double().softmax(-1).numpy()

    @classmethod
    def pair(cls, seed: int, size: int = 12) -> tuple[Rows, Rows]:
        """A target, sure of what follows most tokens, and a draft that is near to it."""
        generator = torch.Generator().manual_seed(seed)
        target = 2.2 * torch.randn(size, size, generator=generator)
        return cls(target), cls(target + 0.7 * torch.randn(size, size, generator=generator))


@dataclass(frozen=True)
class ShortDrafts:
    """See the module; each text has its own random numbers."""

    models: tuple[Rows, Rows]
    k: int = 4
    p_min: float = 0.6
    n_min: int = 0

    def generate(
        self, prompt: Sequence[int], most: int, seed: int
    ) -> tuple[list[int], list[list[int]], list[int]]:
        """Output ids, of each loop what it tested, and how many of these it accepted."""
        chance = random.Random(seed)
        target, draft = (model.laws for model in self.models)

        def drawn(row: Floats) -> int:
            return int(np.searchsorted(np.cumsum(row) / row.sum(), chance.random(), side="right"))

        ids, tested, accepted = [drawn(target[prompt[-1]])], list[list[int]](), list[int]()
        while len(ids) < most:
            last, proposed = ids[-1], list[int]()
            room = min(self.k, most - len(ids) - 1)
            while len(proposed) < room and draft[last].max() >= self.p_min:
                last = drawn(draft[last])
                proposed.append(last)
            proposed = proposed if len(proposed) >= self.n_min else []
            last, kept = ids[-1], 0
            for token in proposed:
                if chance.random() * draft[last, token] >= target[last, token]:
                    ids.append(drawn(np.maximum(target[last] - draft[last], 0.0)))
                    break
                ids.append(token)
                last, kept = token, kept + 1
            else:
                ids.append(drawn(target[last]))
            tested.append(proposed)
            accepted.append(kept)
        return ids, tested, accepted

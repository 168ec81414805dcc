"""Tables as language models that loops can score."""

from __future__ import annotations

import numpy as np
import torch

from spsbench.decode.sampling import warp
from spsbench.law.enumeration import TableModel
from spsbench.records import SamplingParams
from spsbench.simulate.tables import Contexts, Floats


def warped(rows: Floats, sampling: SamplingParams) -> Floats:
    """[S, V] rows under temperature, top-k and nucleus, as a loop warps their logits."""
    return np.asarray(warp(torch.from_numpy(rows).log(), sampling).numpy())


class ChainModel(TableModel):
    """A table as a language model: the logits of a context are the logarithms of its row, in float64.

    Args:
        rows: [S, V] probabilities.
    """

    def __init__(self, contexts: Contexts, rows: Floats) -> None:
        super().__init__(lambda tokens: rows[contexts.of(tokens)].tolist(), rows.shape[1])
        self._contexts = contexts
        self._by_context = torch.from_numpy(rows).log().unbind(0)

    def _logits(self, context: tuple[int, ...]) -> torch.Tensor:
        # Not remembered by the whole text, of which there are too many.
        return self._by_context[self._contexts.of(context)]

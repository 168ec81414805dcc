"""The paper's drafter: a smaller language model, sampled auto-regressively."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.core import sampling as law
from spsbench.core.rejection import Draft
from spsbench.models.language_model import LanguageModel
from spsbench.records import SamplingParams


class ModelDrafter:
    """Samples K tokens from a draft model with the same warping as the target's.

    After full acceptance the draft has not read its own last token: it then reads two pending tokens
    in one forward, so that every loop costs exactly K draft forwards.
    """

    def __init__(self, model: LanguageModel, sampling: SamplingParams, device: torch.device) -> None:
        self.model = model
        self.sampling = sampling
        self._device = device

    def prefill(self, tokens: Sequence[int]) -> None:
        """Read ``tokens`` from an empty memory."""
        self.model.rollback(0)
        if tokens:
            self.model.score(torch.tensor(tokens, device=self._device), last=1)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """See ``Drafter.draft``; ``Draft.tokens`` stays on the device, the host does not wait."""
        pending = torch.tensor(tokens[self.model.length :], device=self._device)
        picks, rows = [], []
        for i in range(k):
            probs = law.warp(self.model.score(pending, last=1), self.sampling)
            pending = law.draw(probs, u[i : i + 1])
            picks.append(pending)
            rows.append(probs)
        return Draft(torch.cat(picks), torch.cat(rows))

    def rollback(self, length: int) -> None:
        """See ``Drafter.rollback``."""
        self.model.rollback(length)

"""The paper's drafter: a smaller language model, sampled auto-regressively."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.core import sampling as law
from spsbench.core.rejection import Draft
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.models.language_model import LanguageModel
from spsbench.plugins import Options
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

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token, which stays pending."""
        self.model.rollback(0)
        if read := prompt[:-1]:
            self.model.score(torch.tensor(read, device=self._device), last=1)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Sample K tokens; they stay on the device, the host does not wait."""
        pending = torch.tensor(tokens[self.model.length :], device=self._device)
        picks, rows = [], []
        for i in range(k):
            probs = law.warp(self.model.score(pending, last=1), self.sampling)
            pending = law.draw(probs, u[i : i + 1])
            picks.append(pending)
            rows.append(probs)
        return Draft(torch.cat(picks), torch.cat(rows))

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Roll back to what was decided; the last token stays pending."""
        self.model.rollback(len(tokens) - 1)


def _build(options: Options, context: Context) -> ModelDrafter:
    assert context.draft is not None
    return ModelDrafter(context.draft, context.sampling, context.device)


KIND = DrafterKind(
    name="model",
    summary="The pair's draft model, sampled token by token (Chen et al. 2023).",
    build=_build,
    needs_draft=True,
    forwards=lambda k: k,
)

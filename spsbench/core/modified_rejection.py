"""Chen et al.'s rule by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from spsbench.core import rejection
from spsbench.core.rejection import Draft, Verdict
from spsbench.core.rule import Rule, RuleKind


def _accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    return rejection.accept_draft(q, draft, u)


def expected_acceptance(q: Tensor, draft: Draft) -> Tensor:
    """[K] sum over x of min(target(x), draft(x)); of a point mass the target's probability of its token.

    Leviathan et al. 2022, Theorem 3.5.
    """
    k = len(draft.tokens)
    if draft.probs is None:
        return q[:k].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    return torch.minimum(q[:k], draft.probs).sum(-1)


KIND = RuleKind(
    name="modified-rejection",
    summary="Accept with probability min(1, target/draft), else draw from the residual (Chen et al. 2023).",
    lossless=True,
    build=lambda options: Rule(_accept, expected_acceptance),
)

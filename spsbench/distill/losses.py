"""The training losses: first the target's distribution, then acceptance."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy(offered: Tensor, wanted: Tensor) -> Tensor:
    """[n] cross-entropy with the target's probabilities of the student's tokens.

    Args:
        offered: [n, m] the student's log-probabilities.
        wanted: [n, m] the target's log-probabilities; they add up to less than 1 where V is larger than m.
    """
    return -(wanted.exp() * offered).sum(-1)


def rejected(offered: Tensor, wanted: Tensor) -> Tensor:
    """[n] the chance that a drafted token is rejected, 1 - sum min(p, q) (Chen et al. 2023, Theorem 1)."""
    return 1 - torch.minimum(offered.exp(), wanted.exp()).sum(-1)


def taught(offered: Tensor, wanted: Tensor, *, falling: bool) -> Tensor:
    """[n] cross-entropy while the rate is full, while it falls the chance of rejection with a tenth of it."""
    loss = cross_entropy(offered, wanted)
    return rejected(offered, wanted) + 0.1 * loss if falling else loss

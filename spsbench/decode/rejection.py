"""Modified rejection sampling, the heart of Algorithm 2 (Chen et al. 2023).

The paper's letters in this module alone: q is the target, p is the draft. (Leviathan et al. 2022
swap them.) Every probability here is already warped (`spsbench.decode.sampling.warp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.decode.sampling import draw


class Draft(NamedTuple):
    """What a drafter proposes in one loop.

    Attributes:
        tokens: [K] int64, the proposed tokens; there may be none.
        probs: [K, V], the distributions that they were drawn from; None where each token was certain (a
            point mass: at V = 152,000 one-hot rows of a copied draft would be megabytes of zeros).
    """

    tokens: Tensor
    probs: Tensor | None

    def rows(self, vocab_size: int, dtype: torch.dtype) -> Tensor:
        """[K, V] the distributions, one-hot for point masses: for records, after the clock."""
        if self.probs is not None:
            return self.probs
        empty = torch.zeros(len(self.tokens), vocab_size, dtype=dtype, device=self.tokens.device)
        return empty.scatter_(-1, self.tokens.unsqueeze(-1), 1.0)


class Verdict(NamedTuple):
    """What the target makes of a draft.

    Attributes:
        accepted: [] int64, how many leading draft tokens stand, 0 to K.
        token: [] int64, the token behind them: a correction after a rejection, else the bonus.
    """

    accepted: Tensor
    token: Tensor


Accept = Callable[[Tensor, Draft, Tensor], Verdict]
"""Judges a draft by the target's rows and uniform numbers, see ``accept_draft``."""


def acceptance_probability(q: Tensor, p: Tensor) -> Tensor:
    """min(1, q(x)/p(x)) for the probabilities that target and draft give to the drafted tokens.

    Args:
        q: [...] probability under the target.
        p: [...] probability under the draft, above 0 since the tokens were drawn from it.

    Returns:
        [...] probabilities of acceptance.
    """
    return (q / p).clamp(max=1.0)


def residual(q: Tensor, p: Tensor) -> Tensor:
    """(q - p)+ up to its normalisation: what a rejected position is drawn from.

    Where rounding alone made a rejection possible (q <= p everywhere) nothing remains; the target's
    own row is then the answer, as in the limit.

    Args:
        q: [..., V] target rows.
        p: [..., V] draft rows; zeros where nothing was drafted, which leaves the target.

    Returns:
        [..., V] non-negative weights, at least one above 0.
    """
    remainder = (q - p).clamp_(min=0.0)
    return torch.where(remainder.sum(-1, keepdim=True) > 0, remainder, q)


def accept_draft(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Accept a prefix of the draft and draw the token behind it (Algorithm 2, the inner loop).

    Each drafted token is accepted if its uniform number is below min(1, q/p); the first rejection
    ends the draft. Behind it comes a token from (q - p)+, or, if all K stand, from the target's row
    K+1. All on the device of its inputs, without a wait of the host.

    Args:
        q: [K+1, V] target probabilities at the K drafted positions and the one behind them.
        draft: K tokens and the [K, V] probabilities that they were drawn from; K may be 0.
        u: [K+1] uniform numbers in [0, 1): K tests and the final draw.

    Returns:
        The number of accepted tokens and the token behind them.
    """
    k = draft.tokens.shape[0]
    if k == 0:
        return Verdict(torch.zeros((), dtype=torch.int64, device=q.device), draw(q[0], u[0]))
    column = draft.tokens.unsqueeze(-1)
    own = q.narrow(0, 0, k).gather(-1, column)
    # Of a point mass p is 1 at its token.
    chance = own if draft.probs is None else acceptance_probability(own, draft.probs.gather(-1, column))
    accept = u.narrow(0, 0, k).unsqueeze(-1) < chance
    accepted = accept.cumprod(0, dtype=torch.int64).sum()
    row = accepted.unsqueeze(0)
    if draft.probs is None:
        weights = _without_own(q.index_select(0, row), draft.tokens, row)
    else:
        # Behind full acceptance nothing was drafted: a row of zeros leaves the target as it is.
        p = pad(draft.probs, (0, 0, 0, 1))
        weights = residual(q.index_select(0, row), p.index_select(0, row))
    return Verdict(accepted, draw(weights, u.narrow(0, k, 1)).squeeze(0))


def _without_own(q: Tensor, tokens: Tensor, row: Tensor) -> Tensor:
    """[1, V] the residual behind a rejected point mass: the target without its token; behind the last, all.

    Args:
        q: [1, V] the target's row there.
        tokens: [K] the draft.
        row: [1] how many were accepted.
    """
    k = tokens.shape[0]
    own = tokens.index_select(0, row.clamp(max=k - 1)).unsqueeze(0)
    rest = q.scatter(-1, own, 0.0)
    takes = (row < k) & (rest.sum(-1) > 0)
    return torch.where(takes.unsqueeze(-1), rest, q)

"""Modified rejection sampling, the heart of Algorithm 2 (Chen et al. 2023).

The paper's letters in this module alone: q is the target, p is the draft. (Leviathan et al. 2022
swap them.) Every probability here is already warped (`spsbench.decode.sampling.warp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.base.arrays import AnyFloats
from spsbench.decode.rows import HostRows, Rows, for_judge, on_host, rows_of, takes_rows
from spsbench.decode.sampling import draw

ROOT = -1
"""The parent of a tree's first tokens: the pending token."""


class Draft:
    """What a drafter proposes in one loop.

    Args:
        tokens: [K] int64, the proposed tokens; there may be none.
        probs: the distributions that they were drawn from, a tensor [K, V] or rows; None where each token
            was certain (a point mass: at V = 152,000 one-hot rows of a copied draft would be megabytes of
            zeros).
        parents: of a tree the node that each token comes after, ``ROOT`` for the pending token; siblings in
            the order in which they were drawn. None for a chain.

    Attributes:
        tokens: as given.
        drawn_from: the distributions as given; of siblings drawn without replacement, each one's row has no
            mass on those before it.
        parents: as given.
    """

    __slots__ = ("drawn_from", "parents", "tokens")

    def __init__(
        self, tokens: Tensor, probs: Rows | Tensor | None, parents: Sequence[int] | None = None
    ) -> None:
        self.tokens = tokens
        self.drawn_from = probs
        self.parents = parents

    @property
    def count(self) -> int:
        """K."""
        return len(self.tokens)

    @property
    def above(self) -> Sequence[int]:
        """[K] the node that each token comes after, of a chain too."""
        return range(ROOT, self.count - 1) if self.parents is None else self.parents

    @property
    def probs(self) -> Tensor | None:
        """[K, V] the distributions; built where they are not held like that. None for point masses."""
        return self.drawn_from.dense() if isinstance(self.drawn_from, Rows) else self.drawn_from

    @property
    def own_rows(self) -> Rows | None:
        """The distributions as they are held; None for point masses."""
        return None if self.drawn_from is None else rows_of(self.drawn_from)

    def rows(self, vocab_size: int, dtype: torch.dtype) -> Tensor:
        """[K, V] the distributions, one-hot for point masses: for records, after the clock."""
        probs = self.probs
        if probs is not None:
            return probs
        empty = torch.zeros(len(self.tokens), vocab_size, dtype=dtype, device=self.tokens.device)
        return empty.scatter_(-1, self.tokens.unsqueeze(-1), 1.0)


class Verdict(NamedTuple):
    """What the target makes of a draft.

    Attributes:
        accepted: [] int64, how many leading draft tokens stand, 0 to K.
        token: [] int64, the token after them: a correction after a rejection, else the bonus.
        path: the nodes that stand, from the root's child on; None where they are the first ones of a chain.
    """

    accepted: Tensor
    token: Tensor
    path: tuple[int, ...] | None = None


Accept = Callable[[Tensor, Draft, Tensor], Verdict]
"""Judges a draft by the target's rows [K+1, V] and uniform numbers, see ``accept_draft``."""


def decided(draft: Draft, verdict: Verdict) -> tuple[list[int], int, int]:
    """Bring the drafted tokens, how many stand and the token after those to the host, in one wait."""
    if verdict.token.is_cpu:
        return draft.tokens.tolist(), int(verdict.accepted), int(verdict.token)
    (one,) = all_decided([(draft, verdict)])
    return one


def all_decided(judgements: Sequence[tuple[Draft, Verdict]]) -> list[tuple[list[int], int, int]]:
    """``decided`` of several drafts, in one wait for all."""
    if all(verdict.token.is_cpu for _, verdict in judgements):
        return [decided(draft, verdict) for draft, verdict in judgements]
    parts: list[Tensor] = []
    for draft, verdict in judgements:
        parts += draft.tokens, torch.stack((verdict.accepted, verdict.token))
    numbers = iter(torch.cat(parts).tolist())
    found = []
    for draft, _ in judgements:
        drafted = [next(numbers) for _ in range(len(draft.tokens))]
        found.append((drafted, next(numbers), next(numbers)))
    return found


class Decision(NamedTuple):
    """A loop's outcome on the host.

    Attributes:
        drafted: all drafted tokens.
        accepted: how many of them stand.
        token: the one after those.
        latest: [1] that token on an accelerator; where all drafted ones stand, [K+1] them and it: what a
            model has yet to read. None on a CPU, where a tensor of the host's own tokens takes less time.
    """

    drafted: list[int]
    accepted: int
    token: int
    latest: Tensor | None


def drawn(q: Rows, u: Tensor) -> Decision:
    """Draw a token from the target's one row by one number, and bring it to the host: a step of ArS."""
    latest = q.draw(u)
    (token,) = latest.tolist()
    return Decision([], 0, token, None if latest.is_cpu else latest)


def decide(rule: Accept, q: Rows, draft: Draft, u: Tensor) -> Decision:
    """Judge a draft and bring the outcome to the host, in one wait."""
    if rule is accept_draft and isinstance(q, HostRows):
        return _accept_on_host(q, draft, u)
    verdict = judged(rule, q, draft, u)
    drafted, accepted, number = decided(draft, verdict)
    if verdict.token.is_cpu:
        return Decision(drafted, accepted, number, None)
    token = verdict.token.unsqueeze(0)
    latest = token if accepted < len(drafted) else torch.cat([draft.tokens, token])
    return Decision(drafted, accepted, number, latest)


def judged(accept: Accept, q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Apply the rule to rows as a loop holds them; a rule that knows tensors alone gets a tensor."""
    return accept(q if isinstance(q, Tensor) else for_judge(accept, q), draft, u)


Weights = TypeVar("Weights", Tensor, AnyFloats)


def acceptance_probability(q: Weights, p: Weights) -> Weights:
    """min(1, q(x)/p(x)) for the probabilities that target and draft give to the drafted tokens.

    Args:
        q: [...] probability under the target.
        p: [...] probability under the draft, above 0 since the tokens were drawn from it.

    Returns:
        [...] probabilities of acceptance.
    """
    if isinstance(q, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.minimum(q / p, 1.0)
    return (q / p).clamp(max=1.0)


def residual(q: Weights, p: Weights) -> Weights:
    """(q - p)+ up to its normalisation: what a rejected position is drawn from.

    Where rounding alone made a rejection possible (q <= p everywhere) nothing remains; the target's
    own row is then the answer, as in the limit.

    Args:
        q: [..., V] target rows; on the host [m] the target's probabilities of any tokens.
        p: [..., V] draft rows; zeros where nothing was drafted, which leaves the target. On the host [m].

    Returns:
        As q, non-negative weights, at least one above 0.
    """
    if isinstance(q, np.ndarray):
        left = np.maximum(q - p, 0.0)
        return left if left.sum() > 0 else q
    remainder = (q - p).clamp_(min=0.0)
    return torch.where(remainder.sum(-1, keepdim=True) > 0, remainder, q)


@takes_rows
def accept_draft(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Accept a prefix of the draft and draw the token after it (Algorithm 2, the inner loop).

    Each drafted token is accepted if its uniform number is below min(1, q/p); the first rejection
    ends the draft. Behind it comes a token from (q - p)+, or, if all K stand, from the target's row
    K+1. On an accelerator all on the device of its inputs, without a wait of the host.

    Args:
        q: K+1 target rows, or a tensor [K+1, V]: at the K drafted positions and the one after them.
        draft: K tokens and the distributions that they were drawn from; K may be 0.
        u: [K+1] uniform numbers in [0, 1): K tests and the final draw.

    Returns:
        The number of accepted tokens and the token after them.
    """
    rows, told = rows_of(q), draft.own_rows
    if isinstance(rows, HostRows):
        found = _accept_on_host(rows, draft, u)
        stand, token = torch.from_numpy(np.array([found.accepted, found.token])).unbind(0)
        return Verdict(stand, token)
    if draft.tokens.shape[0] == 0:
        return Verdict(torch.zeros((), dtype=torch.int64, device=u.device), rows.draw(u).squeeze(0))
    p = None if told is None else rows.alike(told)
    dense = None if p is None else p.dense().unsqueeze(0)
    verdict = accept_drafts(rows.dense().unsqueeze(0), draft.tokens.unsqueeze(0), dense, u.unsqueeze(0))
    return Verdict(verdict.accepted.squeeze(0), verdict.token.squeeze(0))


def accept_drafts(q: Tensor, tokens: Tensor, p: Tensor | None, u: Tensor) -> Verdict:
    """``accept_draft`` for B drafts at once, row by row and without a wait of the host.

    Args:
        q: [B, K+1, V] target rows.
        tokens: [B, K] the drafts.
        p: [B, K, V] the distributions that they were drawn from; None for point masses.
        u: [B, K+1] uniform numbers in [0, 1): K tests and the final draw of each row.

    Returns:
        [B] numbers of accepted tokens, and [B] the tokens after them.
    """
    k, drafted = tokens.shape[1], tokens.unsqueeze(-1)
    own = q[:, :k].gather(-1, drafted).squeeze(-1)
    # Of a point mass p is 1 at its token.
    chance = own if p is None else acceptance_probability(own, p.gather(-1, drafted).squeeze(-1))
    accepted = (u[:, :k] < chance).cumprod(1, dtype=torch.int64).sum(1)
    row = accepted[:, None, None].expand(-1, 1, q.shape[-1])
    target = q.gather(1, row)
    # Behind full acceptance nothing was drafted: a row of zeros leaves the target as it is.
    if p is None:
        place, fell = accepted.clamp(max=k - 1)[:, None, None], (accepted < k)[:, None, None]
        told = torch.zeros_like(target).scatter_(-1, drafted.gather(1, place), fell.to(q.dtype))
    else:
        told = pad(p, (0, 0, 0, 1)).gather(1, row)
    return Verdict(accepted, draw(residual(target, told).squeeze(1), u[:, k]))


def _accept_on_host(q: HostRows, draft: Draft, u: Tensor) -> Decision:
    """``accept_draft`` where the token after the accepted ones is drawn among those that the target has.

    In numbers of the host alone: behind a forward, which leaves nothing else in the processor's caches, each
    operation of a library costs many times what it computes.
    """
    drafted, told, numbers = draft.tokens.tolist(), draft.own_rows, u.tolist()
    p, accepted = None if told is None else on_host(told), 0
    if drafted:
        own = q.of_tokens(drafted)
        chance = own if p is None else acceptance_probability(own, p.of_tokens(drafted))
        tests = zip(numbers, chance.tolist(), strict=False)
        accepted = next((n for n, (number, most) in enumerate(tests) if not number < most), len(drafted))
    row = q[accepted]
    if accepted == len(drafted):
        weights = row.weights
    elif p is None:
        weights = row.without(drafted[accepted])
    else:
        weights = residual(row.weights, p[accepted].along(row))
    return Decision(drafted, accepted, row.drawn(weights, numbers[-1]), None)

"""The law of what a verification rule emits, found out by asking it alone.

Nothing is assumed of the rule but that each of its tests accepts small uniform numbers and rejects
large ones, and that its final draw climbs the vocabulary with its number. So the law is a set of edges
between outcomes. Where one should lie is computed here, in float64; the rule is then asked just below
and just above. Where it answers otherwise, bisection finds its own edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from spsbench.decode.rejection import Accept, Draft

_STEP = 2.0**-18
_HALVINGS = 22
_BELOW_ONE = 1 - 2.0**-24


def emitted_law(rule: Accept, q: Tensor, draft: Draft, drawn: Tensor, j: int) -> Tensor:
    """The law of a loop's token ``j``, given that the drafted tokens before it stand.

    Args:
        rule: e.g. ``decode.rejection.accept_draft``.
        q: [K+1, V] target rows.
        draft: K tokens, and the [K, V] rows that the rule is told they came from.
        drawn: [K, V] rows that they really came from.
        j: 0 to K; K is the token behind full acceptance.

    Returns:
        [V] probabilities in float64. They add up to less than 1 where the rule leaves the path: it
        rejects what stood, or goes on behind a rejection.
    """
    k = len(draft.tokens)
    if j == k:
        return _final_law(_Asked(rule, q, draft, j), 0.0, q[k].tolist())
    law = torch.zeros(q.shape[-1], dtype=torch.float64)
    rejected: dict[int, tuple[float, float]] = {}
    p = draft.rows(q.shape[-1], q.dtype)
    for x in drawn[j].nonzero().flatten().tolist():
        accepted = _Asked(rule, q, _with(draft, j, x), j).acceptance(_ratio(q, p, j, x))
        law[x] += float(drawn[j, x]) * accepted
        rejected[x] = (float(drawn[j, x]) * (1 - accepted), accepted)
    missing = sum(mass for mass, _ in rejected.values())
    if missing > 0:
        x = max(rejected, key=lambda token: rejected[token])
        asked, test = _Asked(rule, q, _with(draft, j, x), j), (1 + rejected[x][1]) / 2
        law += missing * _final_law(asked, test, _left(q[j].tolist(), p[j].tolist()))
    return law


class _Asked:
    """A rule with everything fixed but two of its uniform numbers: that of test ``j`` and the last."""

    def __init__(self, rule: Accept, q: Tensor, draft: Draft, j: int) -> None:
        self._rule, self._q, self._draft, self._j = rule, q, draft, j

    def answer(self, test: float, final: float) -> tuple[int, int]:
        """(accepted, token). All other tests pass at 0; those behind ``j`` must not matter if it fails."""
        tests = [test if i == self._j else 0.0 for i in range(len(self._draft.tokens))]
        u = torch.tensor([*tests, final], dtype=self._q.dtype).clamp_(0.0, _BELOW_ONE)
        verdict = self._rule(self._q, self._draft, u)
        return int(verdict.accepted), int(verdict.token)

    def acceptance(self, guess: float) -> float:
        """Probability that test ``j`` accepts."""
        return _edge(lambda u: self.answer(u, 0.5)[0] > self._j, guess)

    def token(self, test: float, final: float) -> int:
        """The token drawn behind ``j`` accepted ones; past the vocabulary where that is not what it is."""
        accepted, token = self.answer(test, final)
        return token if accepted == self._j else self._q.shape[-1]


def _final_law(asked: _Asked, test: float, weights: Sequence[float]) -> Tensor:
    """[V] law of the final draw with test ``j`` at ``test``; ``weights`` are what it should be."""
    whole, reached = sum(weights), 0.0
    token = cache(lambda u: asked.token(test, u))
    edges = [0.0]
    for y, weight in enumerate(weights):
        reached += weight / whole
        edges.append(_edge(lambda u, y=y: token(u) <= y, reached))  # type: ignore[misc]
    return torch.tensor(edges, dtype=torch.float64).diff()


def _edge(below: Callable[[float], bool], guess: float) -> float:
    """Up to which number ``below`` holds: the guess, if it holds just under and fails just over it."""
    low, high = guess - _STEP, guess + _STEP
    if (low <= 0 or below(low)) and (high >= 1 or not below(high)):
        return guess
    if not below(0.0):
        return 0.0
    if below(_BELOW_ONE):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _ratio(q: Tensor, p: Tensor, j: int, x: int) -> float:
    """min(1, q/p) of one drafted token."""
    return min(1.0, float(q[j, x]) / float(p[j, x])) if p[j, x] > 0 else 1.0


def _left(q: Sequence[float], p: Sequence[float]) -> list[float]:
    """max(q - p, 0); the target where that leaves nothing."""
    left = [max(a - b, 0.0) for a, b in zip(q, p, strict=True)]
    return left if any(left) else list(q)


def _with(draft: Draft, j: int, x: int) -> Draft:
    """The draft with another token at place ``j``."""
    tokens = draft.tokens.clone()
    tokens[j] = x
    return Draft(tokens, draft.probs)

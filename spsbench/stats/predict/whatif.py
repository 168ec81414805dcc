"""What if alpha, c or K were different: one model of a loop, for every prediction.

A loop emits some tokens and costs some ArS steps, both against K; their quotient is the speedup. Where the
two come from is the caller's: tokens from an alpha with independent tests, from the measured length or from
replay; costs from c (a forward of K+1 tokens as costly as one of a single token), from timed forwards, from a
sweep's line or from loops that were run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.law.theory import alpha_iid, expected_tokens

MOST_K = 64
"""Larger lookaheads are not considered."""

KS = range(1, MOST_K + 1)

AgainstK = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A loop against K."""

    tokens: AgainstK
    cost: AgainstK

    def speedup(self, k: int) -> float:
        """Return the speedup over ArS, which is 1 at K = 0."""
        return self.tokens(k) / self.cost(k) if k else 1.0

    def best_k(self, ks: Iterable[int]) -> int:
        """Return the fastest K, the smallest on a tie; 0 if none is faster than ArS."""
        return max((0, *ks), key=lambda k: (self.speedup(k), -k))

    def largest_k(self, ks: Iterable[int]) -> int:
        """Return the largest K that is faster than ArS; 0 if none is."""
        return max((k for k in ks if self.speedup(k) > 1.0), default=0)


def independent(alpha: float, kept: float = 1.0) -> AgainstK:
    """Return tokens per loop if tests are independent (Leviathan et al. 2022, equation 1), times ``kept``.

    That is the share of that length which is measured: correlation of the tests, and ends of outputs.
    """
    return lambda k: kept * expected_tokens(alpha, k)


def by_place(chances: Sequence[float]) -> AgainstK:
    """Return tokens per loop if a draft token that stands behind accepted ones is accepted with its place's
    chance; the last chance holds for all places that follow."""

    def tokens(k: int) -> float:
        kept = np.cumprod([chances[min(place, len(chances) - 1)] for place in range(k)])
        return 1.0 + float(kept.sum())

    return tokens


def leviathan(alpha: float, c: float) -> WhatIf:
    """Predict from independent tests, K+1 tokens verified at the cost of one (Leviathan et al., Th. 3.8)."""
    return WhatIf(independent(alpha), lambda k: 1.0 + k * c)


def alpha_needed(k: int, cost: float, kept: float = 1.0) -> float | None:
    """Return the alpha at which a loop of that cost is as fast as ArS, tests being independent."""
    needed = cost / kept
    return alpha_iid(max(needed, 1.0), k) if needed <= k + 1.0 else None


def at_any(alpha: float) -> bool:
    """Return whether an alpha is 0 in print: a loop costs no more than an ArS step."""
    return alpha < 0.005


def from_alpha(alpha: float) -> str:
    """Return ``from alpha 0.31 on``, or ``at any alpha``: where a loop gains."""
    return "at any alpha" if at_any(alpha) else f"from alpha {alpha:.2f} on"


def c_allowed(c: float, k: float, tokens: float, cost: float) -> float | None:
    """Return the c at which a loop is as fast as ArS, all else being as it is."""
    allowed = c + (tokens - cost) / k
    return allowed if allowed > 0 else None

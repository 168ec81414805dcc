"""What if alpha, c or K were different: one model of a loop, for every prediction.

A loop emits some tokens and costs some ArS steps, both against K; their quotient is the speedup. Where the
two come from is the caller's: tokens from an alpha with independent tests, from the measured length or from
replay; costs from c (a forward of K+1 tokens as costly as one of a single token), from timed forwards, from a
sweep's line or from loops that were run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spsbench.decode.theory import alpha_iid, expected_tokens

MOST_K = 64
"""Larger lookaheads are not considered."""

KS = range(1, MOST_K + 1)

AgainstK = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A loop against K.

    Attributes:
        tokens: that a loop emits on average, from K = 1 on.
        cost: of a loop in ArS steps, likewise.
    """

    tokens: AgainstK
    cost: AgainstK

    def speedup(self, k: int) -> float:
        """Over ArS, which K = 0 is."""
        return self.tokens(k) / self.cost(k) if k else 1.0

    def best_k(self, ks: Iterable[int]) -> int:
        """The fastest of them, the smallest on a tie; 0 if none is faster than ArS."""
        return max((0, *ks), key=lambda k: (self.speedup(k), -k))

    def largest_k(self, ks: Iterable[int]) -> int:
        """The largest of them that is faster than ArS; 0 if none is."""
        return max((k for k in ks if self.speedup(k) > 1.0), default=0)


def independent(alpha: float, kept: float = 1.0) -> AgainstK:
    """Tokens per loop if tests are independent (Leviathan et al. 2022, equation 1).

    Args:
        alpha: the chance of each.
        kept: the share of that length which is measured: correlation of the tests, and ends of outputs.
    """
    return lambda k: kept * expected_tokens(alpha, k)


def leviathan(alpha: float, c: float) -> WhatIf:
    """Independent tests, and verifying K+1 tokens as costly as one ArS step (Leviathan et al. 2022, Th. 3.8).

    Args:
        alpha: the chance of each test.
        c: time of one draft run over the time of one target run.
    """
    return WhatIf(independent(alpha), lambda k: 1.0 + k * c)


def alpha_needed(k: int, cost: float, kept: float = 1.0) -> float | None:
    """The alpha at which a loop of that cost is as fast as ArS, tests being independent.

    Args:
        k: lookahead, at least 1.
        cost: of a loop, in ArS steps.
        kept: see ``independent``.

    Returns:
        0 if every alpha gains, None if none does.
    """
    needed = cost / kept
    return alpha_iid(max(needed, 1.0), k) if needed <= k + 1.0 else None


def c_allowed(c: float, k: float, tokens: float, cost: float) -> float | None:
    """The c at which a loop is as fast as ArS, all else being as it is.

    Args:
        c: what drafting a token costs now, in ArS steps.
        k: how many tokens a loop drafts.
        tokens: that a loop emits.
        cost: of a loop, in ArS steps.

    Returns:
        None if not even a free draft gains.
    """
    allowed = c + (tokens - cost) / k
    return allowed if allowed > 0 else None

"""Ways of deciding how many tokens a loop drafts: always K, by the draft's own rows, by past verdicts.

None of them may withdraw a token. Whether drafting goes on may depend on the tokens drafted so far: the
position behind them is then either tested against the row that it was drawn from, or drawn from the
target, and both give the target's law. A token that was drawn and is then left out is neither: what was
drawn would decide whether the draft or the target writes its position, and tokens that the policy dislikes
would come too rarely or too often. So a policy is asked behind a token, and the token stays.

Each class here is a ``Policy``; see ``policy.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spsbench.errors import UsageError


class _Unlearning:
    """What policies have in common that no verdict changes."""

    def begin(self) -> None:
        """Nothing is remembered."""

    def lookahead(self, k: int) -> int:
        """All of K."""
        return k

    def observe(self, drafted: int, accepted: int) -> None:
        """Nothing is learnt."""


class Fixed(_Unlearning):
    """K tokens in every loop."""

    margin = None


class StopBelow(_Unlearning):
    """Ends the draft behind a token that the draft itself held for improbable.

    Greedy rows are certain of their token: the draft then never ends early.

    Args:
        tau: the probability below which it ends, 0 (never) to 1.
    """

    def __init__(self, tau: float) -> None:
        self._tau = _within(tau, 0.0, 1.0, "stop-below:tau")

    def margin(self, probs: Tensor, tokens: Tensor) -> Tensor:
        """[n] the token's probability over tau."""
        return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - self._tau


class Entropy(_Unlearning):
    """Ends the draft behind a token whose row was spread wide, whichever token was drawn from it.

    Greedy rows have no entropy: the draft then never ends early.

    Args:
        h: the entropy in nats above which it ends, at least 0.
    """

    def __init__(self, h: float) -> None:
        self._h = _within(h, 0.0, float("inf"), "entropy:h")

    def margin(self, probs: Tensor, tokens: Tensor) -> Tensor:
        """[n] how many nats the row's entropy is below h."""
        spread: Tensor = torch.special.entr(probs).sum(-1)
        return self._h - spread


class Momentum:
    """Two tokens more after a loop in which all stood, else one less: transformers' heuristic schedule.

    The schedule that transformers calls ``heuristic_transient``: each sequence starts anew, so that its
    tokens do not depend on the sequences before it.
    """

    margin = None
    _START, _MORE, _LESS = 5, 2, 1

    def __init__(self) -> None:
        self._wanted = self._START

    def begin(self) -> None:
        """Start at 5 again."""
        self._wanted = self._START

    def lookahead(self, k: int) -> int:
        """What is wanted, at most K; growth beyond K is not saved up."""
        self._wanted = min(self._wanted, k)
        return self._wanted

    def observe(self, drafted: int, accepted: int) -> None:
        """Grow after full acceptance, else shrink, to no less than 1."""
        step = self._MORE if accepted == drafted else -self._LESS
        self._wanted = max(self._wanted + step, 1)


def _within(value: float, low: float, high: float, name: str) -> float:
    if low <= value <= high:
        return value
    allowed = f"{low:g} to {high:g}" if high < float("inf") else f"{low:g} or more"
    raise UsageError(f"{name}={value:g} is not valid.", flag="--policy", remedy=f"Give {allowed}.")

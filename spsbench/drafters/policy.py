"""Policies: how many tokens a loop drafts. Always K, by the draft's own rows, or by past acceptance.

None of them may withdraw a token. Whether drafting goes on may depend on the tokens drafted so far: the
position after them is then either tested against the row that it was drawn from, or drawn from the
target, and both give the target's law. A token that was drawn and is then left out is neither: what was
drawn would decide whether the draft or the target writes its position, and tokens that the policy dislikes
would come too rarely or too often. So a policy is asked after a token, and the token stays.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import Ints
from spsbench.decode.rows import Rows, rows_of, takes_rows
from spsbench.drafters.registry import Margin, Policy
from spsbench.drafters.registry import PolicyKind as PolicyKind  # other packages import it from here


class Fixed:
    """K tokens in every loop; no verdict changes anything."""

    margin: Margin | None = None

    def begin(self) -> None: ...

    def lookahead(self, k: int) -> int:
        return k

    def observe(self, drafted: int, accepted: int) -> None: ...


class StopBelow(Fixed):
    """Ends the draft after a token that the draft itself held for improbable.

    Greedy rows are certain of their token: the draft then never ends early.

    Args:
        tau: the probability below which it ends, 0 (never) to 1.
    """

    def __init__(self, tau: float) -> None:
        self._tau = tau

    @takes_rows
    def margin(self, probs: Tensor | Rows, tokens: Tensor) -> Tensor:
        """[n] the token's probability over tau."""
        return rows_of(probs).at(tokens) - self._tau


class Entropy(Fixed):
    """Ends the draft after a token whose row was spread wide, whichever token was drawn from it.

    Greedy rows have no entropy: the draft then never ends early.

    Args:
        h: the entropy in nats above which it ends, at least 0.
    """

    def __init__(self, h: float) -> None:
        self._h = h

    def margin(self, probs: Tensor, tokens: Tensor) -> Tensor:
        """[n] how many nats the row's entropy is below h."""
        spread: Tensor = torch.special.entr(probs).sum(-1)
        return self._h - spread


class Momentum:
    """Two tokens more after a loop in which all stood, else one less: transformers' heuristic schedule.

    The schedule that transformers calls ``heuristic_transient``: each sequence starts again, so that its
    tokens do not depend on the sequences before it.
    """

    margin = None
    START = 5
    _MORE, _LESS = 2, 1

    def __init__(self) -> None:
        self._wanted = self.START

    def begin(self) -> None:
        """Start at 5 again."""
        self._wanted = self.START

    def lookahead(self, k: int) -> int:
        """Return the wanted lookahead, at most K; growth beyond K is not kept."""
        self._wanted = min(self._wanted, k)
        return self._wanted

    def observe(self, drafted: int, accepted: int) -> None:
        """Grow after full acceptance, else shrink, to no less than 1."""
        self._wanted = self.after(self._wanted, stood=accepted == drafted)

    @classmethod
    def after(cls, wanted: int, *, stood: bool) -> int:
        """Return the wanted lookahead after a loop that drafted that many, by whether all of them stood."""
        return max(wanted + (cls._MORE if stood else -cls._LESS), 1)

    @classmethod
    def table(cls, k: int) -> Ints:
        """[K, 2] the next lookahead after one of 1 to K: after a rejection, after full acceptance."""
        rows = [[min(cls.after(w, stood=stood), k) for stood in (False, True)] for w in range(1, k + 1)]
        return np.array(rows, np.int64)


def lookahead_of(policy: Policy | None, k: int) -> int:
    """Return how many tokens the next loop may draft, 1 to k, whatever a foreign policy answers."""
    return k if policy is None else max(1, min(policy.lookahead(k), k))


def lookaheads(policy: Policy, k: int, verdicts: Iterable[tuple[int, int]]) -> list[int]:
    """Return the lookahead of each loop of a sequence, by running the policy again from the beginning.

    Args:
        policy: a separate one, not one that a drafter still uses.
        k: the arm's K.
        verdicts: (drafted, accepted) of each loop, in order.
    """
    policy.begin()
    allowed = []
    for drafted, accepted in verdicts:
        allowed.append(lookahead_of(policy, k))
        if drafted:
            policy.observe(drafted, accepted)
    return allowed

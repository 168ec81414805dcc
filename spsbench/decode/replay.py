"""The loops that SpS takes over a text which its target wrote: their exact law, without running SpS.

A text of SpS is distributed as the target's own. Given the text, a token x that was drafted from p and not
reached by a rejection is accepted with probability min(1, p(x) / q(x)), independent of the tokens before it:
P(x drafted and accepted) = min(p, q)(x), and P(x) = q(x), whatever the draft (Chen et al. 2023, Theorem 1).
So a text and two probabilities a token give the law of every loop, for every K at once.

It holds for a drafter whose proposal follows from the decided tokens alone, and for modified rejection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TextLoops:
    """The loops over one text of n tokens, in expectation.

    Attributes:
        starts: [n] the chance that a loop begins before each token.
        ends: [n, K+1] how a loop that begins there goes on: the chance that so many drafts are accepted.
    """

    starts: Floats
    ends: Floats

    @property
    def loops(self) -> float:
        """Expected number of loops."""
        return float(self.starts.sum())

    def emitted(self) -> Floats:
        """[K+1] expected loops that emit 1 to K+1 tokens of the text; its end cuts the last one."""
        n, most = self.ends.shape
        found = np.zeros(most)
        for accepted in range(most):
            kept = np.minimum(accepted + 1, n - np.arange(n))
            np.add.at(found, kept - 1, self.starts * self.ends[:, accepted])
        return found

    @cached_property
    def counts(self) -> Floats:
        """[n+1] the distribution of the number of loops."""
        n = len(self.starts)
        begun = np.append(self.begun(n), 0.0)
        return np.append(0.0, begun[:-1] - begun[1:])

    def begun(self, count: int) -> Floats:
        """[count] the chance that the text has a first loop, a second one, ..."""
        n, most = self.ends.shape
        found, at = np.zeros(count), np.zeros(n)  # at: where the loop of a number begins
        at[0] = 1.0
        for number in range(count):
            found[number] = at.sum()
            following = np.zeros(n)
            for accepted in range(min(most, n)):
                within = n - accepted - 1
                following[accepted + 1 :] += at[:within] * self.ends[:within, accepted]
            at = following
        return found


def loops_over(chances: Floats) -> TextLoops:
    """The law of the loops over a text.

    Args:
        chances: [n, K] that the j-th draft of a loop which begins before token t is accepted, given that
            those before it are: ``min(1, p / q)`` of the text's token t + j, 0 where nothing is drafted.
            Entries after the end of the text have no effect.
    """
    n, k = chances.shape
    kept = np.cumprod(np.concatenate([np.ones((n, 1)), chances], 1), 1)
    ends = kept.copy()
    ends[:, :k] -= kept[:, 1:]
    starts = np.zeros(n + k + 1)
    starts[0] = 1.0
    for t in range(n):
        starts[t + 1 : t + k + 2] += starts[t] * ends[t]
    return TextLoops(starts[:n], ends)


def accepted_by_token(log_target: Floats, log_draft: Floats) -> Floats:
    """[n] min(1, p / q) of a text's tokens.

    Args:
        log_target: [n] log q of each. At -inf, where rounding moved a token out of the nucleus that it was
            drawn from, whatever can be drafted counts as accepted.
        log_draft: [n] log p of each.
    """
    over = log_draft - np.where(log_target > -np.inf, log_target, 0.0)
    possible = np.exp(np.minimum(over, 0.0))
    return np.where(log_target > -np.inf, possible, (log_draft > -np.inf).astype(np.float64))


def anchored(by_token: Floats, k: int) -> Floats:
    """[n, K] chances of a drafter whose rows depend on the tokens before them, wherever a loop began."""
    n = len(by_token)
    padded = np.concatenate([by_token, np.zeros(k)])
    found: Floats = padded[np.arange(n)[:, None] + np.arange(k)]
    return found


def stopped(chances: Floats, drafted: npt.NDArray[np.int64]) -> Floats:
    """[n, K] chances where a loop that begins before token t drafts at most ``drafted[t]`` tokens."""
    return np.where(np.arange(chances.shape[1]) < drafted[:, None], chances, 0.0)

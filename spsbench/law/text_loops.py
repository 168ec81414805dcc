"""The loops that SpS takes over a text which its target wrote: their exact law, without running SpS.

A text of SpS is distributed as the target's own. Given the text, a token x that was drafted from p and not
reached by a rejection is accepted with probability min(1, p(x) / q(x)), independent of the tokens before it:
P(x drafted and accepted) = min(p, q)(x), and P(x) = q(x), whatever the draft (Chen et al. 2023, Theorem 1).
So a text and two probabilities a token give the law of every loop, for every K at once. It holds for a
drafter whose proposal follows from the decided tokens alone, and for modified rejection.

Under block verification the first i drafted tokens x, or more, stand with probability
w_i = min(1, w_{i-1} q(x_i) / p(x_i)), and what follows them is the target's own (Sun et al. 2024, Lemma 3).
So P(i or more stand, x written) is p(x_1..i) w_i = q(x_1..i) v_i with v_0 = 1 and
v_i = min(v_{i-1}, p(x_1..i) / q(x_1..i)): given the text, a loop keeps i drafts or more with probability v_i.
What is drafted after those has another law than below, and policies are left to modified rejection.

Where a policy decides how many tokens a loop drafts, it ends a draft by the draft's own rows and the tokens
drawn from them. Up to the first rejection these tokens are the text's: how many a loop keeps, and so the
number of loops, follows from the text exactly. The rejected token y is not the text's. Given that the target
wrote x in its place, y has the law max(p - q, 0) / sum max(p - q, 0) and does not depend on x: P(y drafted
and rejected, x written) is max(p - q, 0)(y) times max(q - p, 0)(x) over the sum of either (Chen et al. 2023,
Theorem 1). So whether the draft ends after y is known in law as well. What is drafted after y is never kept
and only costs time; it follows rows after y, which no row of the text gives. It is bounded here: one token,
or all up to K.

The oracle knows, when a loop begins, how many of its drafts will be accepted. Leviathan et al. 2022 (3.5)
speak of one that drafts exactly those, which is the fastest where a loop's time rises evenly with what it
drafts. Here a loop of a accepted drafts may draft any number d of tokens up to K: it then emits min(a, d) + 1
of them. The oracle chooses d to minimise the expected time of the rest of the text, by recursion from its
end. It also knows the text and every chance along it. Whatever a policy that does not know a drafts, the
oracle could draft too: no policy with drafts of up to K tokens is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from spsbench.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class TextLoops:
    """The loops over one text of n tokens, in expectation, under a policy with S states; one, if K is fixed.

    Attributes:
        starts: [S, n] the chance that a loop begins before each token in each state.
        ends: [S, n, K+1] how such a loop goes on: the chance that so many drafts are accepted.
        moves: [S, K+1] the state of the next loop.
        first: the state of the first loop.
    """

    starts: Floats
    ends: Floats
    moves: Ints
    first: int = 0

    @property
    def loops(self) -> float:
        """Expected number of loops."""
        return float(self.starts.sum())

    def emitted(self) -> Floats:
        """[K+1] expected loops that emit 1 to K+1 tokens of the text; its end cuts the last one."""
        _, n, most = self.ends.shape
        loops_by_length = np.zeros(most)
        for accepted in range(most):
            kept = np.minimum(accepted + 1, n - np.arange(n))
            np.add.at(loops_by_length, kept - 1, (self.starts * self.ends[..., accepted]).sum(0))
        return loops_by_length

    @cached_property
    def counts(self) -> Floats:
        """[n+1] the distribution of the number of loops."""
        begun = np.append(self.begun(self.starts.shape[1]), 0.0)
        return np.append(0.0, begun[:-1] - begun[1:])

    def begun(self, count: int) -> Floats:
        """[count] the chance that the text has a first loop, a second one, ..."""
        chances = np.zeros(count)
        for number, at in enumerate(islice(self._places(), count)):
            chances[number] = at.sum()
            if not chances[number]:  # nor do any later
                break
        return chances

    def placed(self, count: int) -> Floats:
        """[count, S, n] where the first loops of the text begin, loop by loop."""
        return np.array([*islice(self._places(), count)], np.float64).reshape(count, *self.starts.shape)

    def _places(self) -> Iterator[Floats]:
        """[S, n] where the first loop begins, the second one, ..."""
        n = self.starts.shape[1]
        at = np.zeros_like(self.starts)
        at[self.first, 0] = 1.0
        while True:
            yield at
            following = np.zeros_like(at)
            for state, move in enumerate(self.moves):
                for accepted, then in enumerate(move[:n]):
                    within = n - accepted - 1
                    following[then, accepted + 1 :] += (
                        at[state, :within] * self.ends[state, :within, accepted]
                    )
            at = following


def loops_over(ratios: Floats, *, block: bool = False) -> TextLoops:
    """Return the law of the loops over a text.

    Args:
        ratios: [n, K] ``p / q`` of the text's token t + j as the j-th draft of a loop that begins before
            token t, 0 where nothing is drafted; modified rejection accepts it with ``min(1, p / q)`` if it
            accepted those before. Entries after the end of the text have no effect.
        block: whether drafts are judged by block verification.
    """
    n, k = ratios.shape
    ratios = np.concatenate([np.ones((n, 1)), ratios], 1)
    if block:
        with np.errstate(divide="ignore"):  # in logs: a product of K ratios may overflow
            kept = np.exp(np.minimum.accumulate(np.cumsum(np.log(ratios), 1), 1))
    else:
        kept = np.cumprod(np.minimum(ratios, 1.0), 1)
    ends = kept.copy()
    ends[:, :k] -= kept[:, 1:]
    starts = np.zeros(n + k + 1)
    starts[0] = 1.0
    for t in range(n):
        starts[t + 1 : t + k + 2] += starts[t] * ends[t]
    return TextLoops(starts[None, :n], ends[None], np.zeros((1, k + 1), np.int64))


def ratio_by_token(log_target: Floats, log_draft: Floats) -> Floats:
    """Return [n] p / q of a text's tokens.

    Args:
        log_target: [n] log q of each. At -inf, where rounding moved a token out of the nucleus that it was
            drawn from, it is 1 for whatever can be drafted: accepted, and making up for nothing.
        log_draft: [n] log p of each.
    """
    over = log_draft - np.where(log_target > -np.inf, log_target, 0.0)
    possible = np.exp(np.minimum(over, _LARGEST))
    return np.where(log_target > -np.inf, possible, (log_draft > -np.inf).astype(np.float64))


_LARGEST = 700.0
"""The log of a ratio is cut here, below overflow."""


def accepted_by_token(log_target: Floats, log_draft: Floats) -> Floats:
    """[n] min(1, p / q) of a text's tokens; see ``ratio_by_token``."""
    return np.minimum(ratio_by_token(log_target, log_draft), 1.0)


def anchored(by_token: Floats, k: int) -> Floats:
    """Lay out [n] chances or ratios of a text's tokens as [n, K], by where a loop begins.

    Entry (t, j) is of token t + j, the j-th draft of a loop that begins before token t; 0 after the text.
    """
    n = len(by_token)
    padded = np.concatenate([by_token, np.zeros(k)])
    rows: Floats = padded[np.arange(n)[:, None] + np.arange(k)]
    return rows


def stopped(chances: Floats, drafted: Ints) -> Floats:
    """Return [n, K] chances or ratios where a loop before token t drafts at most ``drafted[t]`` tokens."""
    return np.where(np.arange(chances.shape[1]) < drafted[:, None], chances, 0.0)


def loops_in_states(ends: Floats, moves: Ints, first: int) -> TextLoops:
    """The law of loops whose state follows from the one before and from what it accepted.

    Args:
        ends, moves, first: see ``TextLoops``.
    """
    states, n, most = ends.shape
    starts, ahead = np.zeros((states, n + most)), np.arange(1, most + 1)
    starts[first, 0] = 1.0
    for t in range(n):
        for state in range(states):
            starts[moves[state], t + ahead] += starts[state, t] * ends[state, t]
    return TextLoops(starts[:, :n], ends, moves, first)


@dataclass(frozen=True, slots=True)
class DraftedLoops:
    """Loops over a text by how many tokens they draft, in expectation.

    Attributes:
        loops: [n, K+1] loops that begin before each token and draft 0 to K tokens.
        first: [count, K+1] the same of the text's first loops, wherever they begin.
    """

    loops: Floats
    first: Floats


def drafted_loops(law: TextLoops, drafted: Floats, count: int) -> DraftedLoops:
    """Return what loops draft.

    Args:
        law: where they begin.
        drafted: [S, n, K+1] the chance that a loop which begins there drafts 0 to K tokens.
        count: of first loops to be distinguished.
    """
    return DraftedLoops(
        np.einsum("sn,snm->nm", law.starts, drafted), np.einsum("psn,snm->pm", law.placed(count), drafted)
    )


def fixed_loops(accepted: Floats, k: int) -> tuple[TextLoops, Floats]:
    """Return (law, drafted) of K tokens in every loop.

    Args:
        accepted: [n] ``min(1, p / q)`` of the text's tokens.
        k: lookahead.
    """
    law = loops_over(anchored(accepted, k))
    drafted = np.zeros_like(law.ends)
    drafted[..., k] = 1.0
    return law, drafted


def momentum_loops(accepted: Floats, following: Ints, first: int) -> tuple[TextLoops, Floats]:
    """Return (law, drafted) of a lookahead that follows from the one before and from whether all of it stood.

    Args:
        accepted: [n] ``min(1, p / q)`` of the text's tokens.
        following: [K, 2] the next lookahead after one of 1 to K: after a rejection, after none.
        first: the first loop's lookahead.
    """
    k = len(following)
    ends = np.zeros((k, len(accepted), k + 1))
    moves = np.repeat(following[:, :1] - 1, k + 1, 1)
    drafted = np.zeros_like(ends)
    for lookahead in range(1, k + 1):
        state = lookahead - 1
        ends[state, :, : lookahead + 1] = loops_over(anchored(accepted, lookahead)).ends[0]
        moves[state, lookahead] = following[state, 1] - 1
        drafted[state, :, lookahead] = 1.0
    return loops_in_states(ends, moves, first - 1), drafted


class Rollouts(NamedTuple):
    """Drafts that were sampled on after a rejected token.

    Attributes:
        positions: [m] of the rejected tokens in the text; n is after its end.
        weights: [m] one over the chance that the position was chosen.
        further: [m] tokens drafted after the rejected one until the policy ends the draft, at most K - 1.
    """

    positions: Ints
    weights: Floats
    further: Ints


@dataclass(frozen=True, slots=True)
class StoppedLoops:
    """The loops under a policy that ends drafts by rows and tokens of the draft.

    Attributes:
        law: where loops begin and what they accept: exact.
        most: [n] tokens that a loop drafts as long as they are the text's.
        low, high: [1, n, K+1] the chance that a loop drafts 0 to K tokens, if a draft that goes on after a
            rejected token ends after the next one, or never: every law of the drafted lies between.
    """

    law: TextLoops
    most: Ints
    low: Floats
    high: Floats

    def sampled(self, rollouts: Rollouts) -> Floats:
        """[1, n, K+1] an unbiased estimate in place of the bounds: ``low`` and what rollouts draft beyond."""
        drafted_shares = self.low.copy()
        n, width = self.law.ends.shape[1:]
        k = width - 1
        accepted = np.arange(k)
        for position, weight, further in zip(*rollouts, strict=True):
            begun = position - accepted
            inside = (begun >= 0) & (begun < n)
            inside[inside] &= accepted[inside] < self.most[begun[inside]]
            drafted = np.minimum(accepted + 1 + further, k)
            base = np.minimum(accepted + 2, k)
            own = inside & (drafted > base)
            chance = weight * self.law.ends[0, begun[own], accepted[own]]
            np.add.at(drafted_shares[0], (begun[own], drafted[own]), chance)
            np.add.at(drafted_shares[0], (begun[own], base[own]), -chance)
        return drafted_shares


def stopped_loops(accepted: Floats, stops: Bools, rejected: Floats, k: int) -> StoppedLoops:
    """Return the loops of drafts that end early.

    Args:
        accepted: [n] ``min(1, p / q)`` of the text's tokens.
        stops: [n] whether a draft ends after each of them, if it was drafted.
        rejected: [n+1] the chance that it ends after the rejected token, where the text's was rejected
            for another; the last entry is of what is drafted after the text.
        k: the most that a loop drafts.
    """
    most = drafted_ahead(stops, k)
    law = loops_over(stopped(anchored(accepted, k), most))
    low, high = drafted_bounds(law.ends[0], most, rejected)
    return StoppedLoops(law, most, low[None], high[None])


def drafted_ahead(stops: Bools, k: int) -> Ints:
    """[n] tokens that a loop which begins before each token drafts, if all of them are the text's."""
    n = len(stops)
    places = np.arange(n)
    first = np.minimum.accumulate(np.where(stops, places, n + k)[::-1])[::-1]
    lengths: Ints = np.minimum(first - places + 1, k)
    return lengths


def drafted_bounds(ends: Floats, most: Ints, rejected: Floats) -> tuple[Floats, Floats]:
    """What loops draft, if a draft that goes on after a rejected token ends after the next one, or never.

    Args:
        ends: [n, K+1] how loops go on.
        most: [n] see ``drafted_ahead``.
        rejected: [n+1] see ``stopped_loops``.

    Returns:
        [n, K+1] each: see ``low`` and ``high`` of ``StoppedLoops``.
    """
    n, width = ends.shape
    k, accepted, places = width - 1, np.arange(width - 1), np.arange(n)
    chance = np.where(accepted < most[:, None], ends[:, :k], 0.0)
    stop = rejected[np.minimum(places[:, None] + accepted, n)]
    stop = np.where(accepted + 1 < k, stop, 1.0)  # after K tokens nothing is left to decide
    low = np.zeros_like(ends)
    low[places, most] = ends[places, most]
    low[:, 1:] += chance * stop
    high = low.copy()
    going_on = chance * (1 - stop)
    low[:, 2:] += going_on[:, : k - 1]
    high[:, k] += going_on.sum(1)
    return low, high


def fastest_drafts(ends: Floats, seconds: Floats) -> tuple[Ints, float]:
    """Return how many tokens the oracle drafts, and the time that it takes for the text.

    Args:
        ends: [n, K+1] of a fixed K, see ``TextLoops``.
        seconds: [n, K+1] of a loop that begins before each token and drafts 0 to K tokens.

    Returns:
        [n, K+1] for each number of drafts that would be accepted; expected seconds.
    """
    n, width = ends.shape
    rest = np.zeros(n + width)
    chosen = np.zeros((n, width), np.int64)
    kept = np.minimum(np.arange(width)[:, None], np.arange(width))  # [d, a]
    for t in range(n - 1, -1, -1):
        options = seconds[t][:, None] + rest[t + 1 + kept]
        chosen[t] = options.argmin(0)
        rest[t] = ends[t] @ options.min(0)
    return chosen, float(rest[0])


def oracle_loops(ends: Floats, chosen: Ints) -> tuple[TextLoops, Floats]:
    """Return (law, drafted) of loops that draft what was chosen for the number that would be accepted.

    Args:
        ends: [n, K+1] of a fixed K.
        chosen: see ``fastest_drafts``.
    """
    n, width = ends.shape
    own, drafted = np.zeros_like(ends), np.zeros_like(ends)
    rows = np.arange(n)
    for accepted in range(width):
        np.add.at(own, (rows, np.minimum(accepted, chosen[:, accepted])), ends[:, accepted])
        np.add.at(drafted, (rows, chosen[:, accepted]), ends[:, accepted])
    law = loops_in_states(own[None], np.zeros((1, width), np.int64), 0)
    return law, drafted[None]

"""Bets on what goes wrong rarely: some requests from some token on, and single tokens.

A request that is answered from a wrong state is right up to a token and then follows other rows to its end.
Each text has an e-value of its own against that, a mixture over the token at which it parts. The product over
texts of ``1 - share + share * e-value`` is a martingale for a right engine (mean 1 each, whatever came
before), so it may be looked at after every text; one wrong request in hundreds is not averaged away by the
right ones, which cost ``share`` each. Single tokens have the same product over tokens.

What the texts could have shown is not read from a formula: ``Rare.power`` lets some of them part at random
tokens, reads them again, and draws audits with so many of them. A request that goes on with the whole text
of another is not among them; ``python -m benchmarks.rare_power`` says how often that is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from spsbench.base import Bools, Floats, Ints
from spsbench.parts.audit.bet_table import TINY
from spsbench.parts.audit.messages.faults import (
    ANY,
    BEFORE_ROW,
    COPIED,
    OTHER_ROW,
    OTHER_TEXT,
    REQUESTS,
    TEXT_BEFORE,
    TOKENS,
    WRITES_SECOND,
    WRONG_STATES,
)
from spsbench.store import RareShares

Kind = Literal["another_request", "stale_row", "random_token"]
"""What a wrong request of ``Rare.power`` draws from."""

KINDS: Final[Sequence[Kind]] = ("another_request", "stale_row", "random_token")

_REQUESTS = (0.003, 0.03)
"""Shares of requests that are taken to be wrong."""

_REPLACED = ((0.003, 0.0), (0.0005, 0.9))
"""Shares of tokens that are taken to be the second best, and how sure the target is of its best there."""

_PARTS = 1 / 32
"""Probability that a wrong request parts at a token, if it did not before."""

_ELSEWHERE = 0.9
"""Share of the other law in a request that has parted: now and then it agrees with the target."""

_MOST = 1e200

FOUND = 0.95
"""How often an audit is to find a share that it names."""

_READ_AGAIN = 32
"""Texts that are made to part and read again, for each kind of wrong request."""

_AUDITS = 1000
_FEWEST_TEXTS = 20


@dataclass(frozen=True, slots=True)
class _Entries:
    """Rows [n, V] of another law, with their mass [n] where the target has any."""

    rows: Floats
    inside: Floats


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The text before another: rows [m, V] and tokens [m], of which a wrong state may answer the next one."""

    rows: Floats
    tokens: Ints


class OtherRows:
    """Laws of whole rows that a wrong state may stand for, beside the target's rows ``q`` [n, V].

    Args:
        q: of the text.
        usual: [V] the sum of rows of earlier texts; None before there are any.
        neighbour: None where none is known.
    """

    def __init__(self, q: Floats, usual: Floats | None, neighbour: Neighbour | None = None) -> None:
        self.q, self._neighbour = q, neighbour
        self._every = np.arange(len(q))
        possible = q > 0
        self.support = possible.sum(-1)
        before = np.vstack([q[:1], q[:-1]])
        mean = np.vstack([q[:1], (q.cumsum(0) / (self._every + 1)[:, None])[:-1]])
        elsewhere = q if usual is None else np.broadcast_to(usual / usual.sum(), q.shape)
        beside = elsewhere
        if neighbour is not None:  # at the same token, as far as it goes
            beside = np.vstack([neighbour.rows[: len(q)], elsewhere[len(neighbour.rows) :]])
        self._laws = {
            name: _Entries(rows, np.where(possible, rows, 0.0).sum(-1))
            for name, rows in (
                (BEFORE_ROW, before),
                (OTHER_ROW, mean),
                (OTHER_TEXT, elsewhere),
                (TEXT_BEFORE, beside),
            )
        }

    def ratios(self, name: str, tokens: Ints) -> Floats:
        """[n] how much more probable tokens [n] are under a law than under the target."""
        probability = np.maximum(self.q[self._every, tokens], TINY)
        if name == ANY:
            return np.asarray(1 / (self.support * probability))
        if name == COPIED:
            return self._copied(tokens)
        law = self._laws[name]
        other = law.rows[self._every, tokens] / np.maximum(law.inside * probability, TINY)
        return np.where(law.inside > 0, other, 1.0)

    def _copied(self, tokens: Ints) -> Floats:
        """[n] ratios of a law that writes the text before, where the target may write it, too."""
        ratios = np.ones(len(tokens))
        if self._neighbour is not None:
            copied = self._neighbour.tokens[: len(tokens)]
            chance = self.q[self._every[: len(copied)], copied]
            ratios[: len(copied)] = np.where(
                chance > 0, (tokens[: len(copied)] == copied) / np.maximum(chance, TINY), 1.0
            )
        return ratios

    def next_to(self, tokens: Ints) -> Floats:
        """[n] the target's probabilities of tokens [n]."""
        return np.asarray(self.q[self._every, tokens])


@dataclass(frozen=True, slots=True)
class _Read:
    """What is kept of a text: what it adds [stakes], and by kind what could stand in its place, [n] each."""

    tokens: Ints
    added: Floats
    wrong: Mapping[Kind, Ints]


class Rare:
    """One e-process over rare faults, and what it would have found.

    ``log_e`` may be looked at after every text. Nothing that ``power`` draws has a part in it.
    """

    def __init__(self, seed: int = 0) -> None:
        stakes = [(REQUESTS, name) for name in WRONG_STATES for _ in _REQUESTS]
        self._stakes = [*stakes, *((TOKENS, WRITES_SECOND) for _ in _REPLACED)]
        self._logs = np.zeros(len(self._stakes))
        self._weight = -math.log(len(self._stakes))
        self._rng = np.random.default_rng(seed)
        self._texts: list[_Read] = []
        self.neighbour: Neighbour | None = None

    def add(self, others: OtherRows, tokens: Ints) -> Floats:
        """Add a text; return what it adds to the log of each stake."""
        added = added_by(others, tokens)
        self._logs += added
        self._texts.append(_Read(tokens, added, self._wrong(others)))
        self.neighbour = Neighbour(others.q, tokens)
        return added

    def tokens_of(self, number: int) -> Ints:
        """[n] of a text that was added."""
        return self._texts[number].tokens

    @property
    def log_e(self) -> float:
        """Log of the e-value after all texts so far."""
        return float(np.logaddexp.reduce(self._logs)) + self._weight

    def leading(self) -> tuple[str, str]:
        """Return the place that has most of the evidence, and what is wrong there."""
        return self._stakes[int(self._logs.argmax())]

    def _wrong(self, others: OtherRows) -> dict[Kind, Ints]:
        """By kind what a wrong request may write from a token on; of the first, in another text's place."""
        q = others.q
        nth = (self._rng.random(len(q)) * others.support).astype(np.int64)
        return {
            "another_request": _drawn_from(q, self._rng.random(len(q))),
            "stale_row": _drawn_from(np.vstack([q[:1], q[:-1]]), self._rng.random(len(q))),
            "random_token": _nth_possible(others, nth),
        }

    def power(
        self, read: Callable[[int, Ints], OtherRows], needed: float, *, exact: bool
    ) -> RareShares | None:
        """Return the least shares that so many texts would have shown, 19 times in 20.

        Some of the texts part at random tokens and are read again, as what follows a wrong token is less
        surprising than it was behind a right one. Audits are then drawn from them and from the others.

        Args:
            read: gives the rows of the text with that number if other tokens stand there, with the rows of
                the text before.
            needed: log of the e-value at which an audit speaks.
            exact: whether a token that the target cannot draw is an alarm by itself.

        Returns:
            None for too few texts.
        """
        count = len(self._texts)
        if count < _FEWEST_TEXTS:
            return None
        rng = np.random.default_rng(count)
        base = np.minimum(self._logs, 0.0) + self._weight  # what seems to be there already is not counted
        chosen = np.unique(np.linspace(1, count - 1, _READ_AGAIN).astype(int)).tolist()
        # Text by text, so that a text's neighbour is read once and its rows are not kept.
        gained = np.array([[self._parted(kind, n, read, rng) for kind in KINDS] for n in chosen])
        another_request, stale_row, random_token = (
            _least_share(gained[:, number], base, count, needed, exact, rng) for number in range(len(KINDS))
        )
        return {
            "level": FOUND,
            "another_request": another_request,
            "stale_row": stale_row,
            "random_token": random_token,
        }

    def _parted(
        self, kind: Kind, number: int, read: Callable[[int, Ints], OtherRows], rng: np.random.Generator
    ) -> Floats:
        """[stakes + 1] what a text adds beyond itself once it parts, and whether it is then impossible."""
        text = self._texts[number]
        source = self._texts[number - 1] if kind == "another_request" else text
        other = source.wrong[kind][: len(text.tokens)]
        start = int(rng.integers(0, len(other)))
        tokens = np.concatenate([text.tokens[:start], other[start:]])
        others = read(number, tokens)
        impossible = (others.next_to(tokens) <= 0).any()
        return np.append(added_by(others, tokens) - text.added, impossible)


def added_by(others: OtherRows, tokens: Ints) -> Floats:
    """[stakes] what a text adds to the logs."""
    there = others.next_to(tokens) > 0  # else it is an alarm by itself, or rounding
    ratios = np.where(there, _mixed(others, tokens), 1.0)  # [laws, n]
    single = _second_best(others.q, tokens, there).sum(0)
    return np.concatenate([_wagered(from_some_token_on(ratios.T)), single])


def _mixed(others: OtherRows, tokens: Ints) -> Floats:
    """[laws, n] ratios of the laws that are bet on, mixed with the target."""
    laws = [sum(others.ratios(name, tokens) for name in laws) / len(laws) for laws in WRONG_STATES.values()]
    return np.asarray(1 - _ELSEWHERE + _ELSEWHERE * np.stack(laws))


def from_some_token_on(ratios: Floats) -> Floats:
    """[...] e-values of texts whose law is another from a token on, which is geometric, to their end.

    Args:
        ratios: [n, ...] of the other law to the target's, by token.
    """
    wrong, right = np.zeros(ratios.shape[1:]), 1.0
    for ratio in ratios:
        wrong = np.minimum((wrong + _PARTS * right) * ratio, _MOST)
        right *= 1 - _PARTS
    return np.asarray(right + wrong)


def _wagered(e_values: Floats) -> Floats:
    """[..., laws * shares] logs of what e-values [..., laws] of a request add to the stakes."""
    shares = np.array(_REQUESTS)
    logs = np.log(1 - shares + shares * e_values[..., None])
    return np.asarray(logs.reshape(*e_values.shape[:-1], -1))


def _second_best(q: Floats, tokens: Ints, there: Bools) -> Floats:
    """[n, shares] logs of what each token adds to the bets on the second best."""
    every = np.arange(len(q))
    two = np.argpartition(q, -2, axis=-1)[:, -2:]  # the second best, then the best
    second = two[:, 0]
    chance, best = q[every, second], q[every, two[:, 1]]
    shares, sure = (np.array(each) for each in zip(*_REPLACED, strict=True))
    staked = np.where((best[:, None] >= sure) & (chance[:, None] > 0), shares, 0.0)
    gain = np.log(1 - staked + staked / np.maximum(chance, TINY)[:, None])
    hit = (tokens == second)[:, None]
    return np.where(there[:, None], np.where(hit, gain, np.log1p(-staked)), 0.0)


def _drawn_from(rows: Floats, dice: Floats) -> Ints:
    """[n] tokens drawn with numbers [n] of [0, 1) from rows [n, V]."""
    sums = rows.cumsum(-1)
    drawn = [np.searchsorted(row, u * row[-1], side="right") for row, u in zip(sums, dice, strict=True)]
    return np.asarray(np.minimum(drawn, rows.shape[1] - 1), dtype=np.int64)


def _nth_possible(others: OtherRows, nth: Ints) -> Ints:
    """[n] of each row the token that so many possible ones precede."""
    if (others.support == others.q.shape[1]).all():
        return nth
    return np.array([np.flatnonzero(row)[place] for row, place in zip(others.q, nth, strict=True)])


def _least_share(
    gained: Floats, base: Floats, count: int, needed: float, exact: bool, rng: np.random.Generator
) -> float | None:
    """Of wrong ones among ``count`` that audits find; None if all are too few.

    Args:
        gained: [m, stakes + 1] what wrong ones add, and whether they are an alarm by themselves.
        base: [stakes] logs without wrong ones.
    """
    gained, alone = gained[:, :-1], gained[:, -1] > 0
    alone = alone & exact
    resampled = rng.integers(0, len(gained), (_AUDITS, len(gained)))
    margin = 1.64 * math.sqrt(FOUND * (1 - FOUND) / _AUDITS)

    def finds(share: float) -> bool:
        wrong = rng.binomial(count, share, _AUDITS)
        audit = np.repeat(np.arange(_AUDITS), wrong)
        which = rng.integers(0, len(gained), len(audit))
        which = resampled[audit, which]  # of so few each audit has a sample of its own
        totals = np.column_stack(
            [np.bincount(audit, column[which], minlength=_AUDITS) for column in gained.T]
        )
        shown = np.bincount(audit, alone[which], minlength=_AUDITS) > 0
        reached = np.logaddexp.reduce(totals + base, axis=-1) >= needed
        return float((shown | reached).mean()) >= FOUND + margin

    share = 1 / count
    while share < 1:
        if finds(share):
            return share
        share *= 1.1
    return 1.0 if finds(1.0) else None

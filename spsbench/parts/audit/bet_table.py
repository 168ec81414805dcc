"""What an audit bets on: rows of a table (name, share, law).

A law says with which probability each token would come if an engine had one certain fault. Its ratio to the
target's probability has mean 1 (or less) under the target, so that a bet's wealth, the product of ratios, is
a martingale as long as what the law uses is known before the token is drawn: rows, earlier tokens, earlier
texts, and how many tokens of the running loop were accepted so far. Whether the token itself will be accepted
is not known then: no place depends on it. See ``docs/decisions.md``, 0034.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from spsbench.base import Bools, Floats, Ints, Message
from spsbench.parts.audit.messages import faults
from spsbench.parts.audit.messages.faults import NumbersReused

Kinds = npt.NDArray[np.str_]

TINY = 1e-200


@dataclass(slots=True)
class Numbers:
    """[n] intervals in which a token's numbers lie: of its pick, its test (from 0 on) and its final draw."""

    pick: Floats  # [n, 2]
    test: Floats  # [n]
    final: Floats  # [n, 2]

    @classmethod
    def unknown(cls, n: int) -> Numbers:
        """Return intervals that say nothing: each number is anywhere in [0, 1]."""
        return cls(np.tile((0.0, 1.0), (n, 1)), np.ones(n), np.tile((0.0, 1.0), (n, 1)))


@dataclass(slots=True)
class View:
    """One text as the bets see it: n tokens, m columns a row (the vocabulary, or its head and the rest).

    Attributes:
        x: [n] the column of each token.
        q, p: [n, m] target and draft; p has no columns where nothing is drafted.
        raw: [n, m] the draft at temperature 1 without any cut.
        index: [n] place within the loop, from 0; -1 where the loops are not known.
        kind: [n] ``a``ccepted, ``c``orrected, ``b``onus or ``?``: known after the token only.
        tested: [n] the column of the drafted token that was tested there; -1 where none is known.
        support: [n] how many tokens are possible.
        ratios: [n] ratios of laws that need more than these columns, by name.
        numbers: by where they were used before, and the order in which tokens are drawn.
        own: [n] the target's probability of each column ``x``, at least ``TINY``.
        residual: [n, m] of modified rejection; the target where nothing is left, or nothing is drafted.
    """

    x: Ints
    q: Floats
    p: Floats
    raw: Floats
    index: Ints
    kind: Kinds
    tested: Ints
    k: int
    temperature: float
    support: Floats
    ratios: dict[str, Floats]
    numbers: dict[tuple[str, str], Numbers] = field(default_factory=dict)
    own: Floats = field(init=False)
    residual: Floats = field(init=False)
    cache: dict[tuple[str, str], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = np.maximum(self.entry(self.q), TINY)
        self.residual = _residual(self.q, self.p) if self.p.size else self.q

    @property
    def whole(self) -> Bools:
        """[n] whether all drafted tokens of the loop stand before."""
        return np.asarray((self.index == self.k) & (self.k > 0))

    def at(self, rows: Floats) -> Floats:
        """[n] ratio of each token's entry in ``rows`` to the target's."""
        return np.asarray(self.entry(rows) / self.own)

    def entry(self, rows: Floats | Bools, columns: Ints | None = None) -> Floats:
        """[n] each token's entry, or the entry of other columns."""
        return np.asarray(rows[np.arange(len(self.x)), self.x if columns is None else columns])

    def below(self, of: str, order: str) -> Floats:
        """[n, m] mass of ``p``, ``q`` or ``residual`` before each column, by id or descending probability."""
        if (of, order) not in self.cache:
            rows: Floats = getattr(self, of)
            masses = rows.cumsum(-1) - rows
            if order == "probability":
                columns = np.argsort(-rows, axis=-1, kind="stable")
                ordered = np.take_along_axis(rows, columns, -1)
                np.put_along_axis(masses, columns, ordered.cumsum(-1) - ordered, -1)
            self.cache[of, order] = masses
        return self.cache[of, order]


def _residual(q: Floats, p: Floats) -> Floats:
    left = np.maximum(q - p, 0.0)
    total = left.sum(-1, keepdims=True)
    return np.where(total > 1e-6, left / np.maximum(total, TINY), q)


# --- laws of one row ----------------------------------------------------------------------------------
# Each gives [n] ratios; what a law needs of the draft is there where it is asked.

Law = Callable[[View], Floats]
Name = Message | str
Rows = Callable[[View], Any]
"""[n, m] weights of tokens, not always normalised."""


def _from_whole_rows(v: View, name: str) -> Floats:
    return v.ratios[name]


def _tempered_ratios(v: View, power: float) -> Floats:
    return np.asarray(v.own ** (power - 1) / (v.q**power).sum(-1))


def _greedy(v: View) -> Floats:
    best = v.q.argmax(-1) == v.x
    return np.where(best, 1 / v.own, 0.0)


def _ratios_cut_to(v: View, inside: Bools) -> Floats:
    """``inside``: [n, m]."""
    mass = (v.q * inside).sum(-1)
    return np.where(mass > 0, v.entry(inside) / np.maximum(mass, TINY), 1.0)


def _cut_to_most_probable(v: View, count: int) -> Floats:
    if v.q.shape[-1] <= count:
        return np.ones_like(v.own)
    return _ratios_cut_to(v, v.q >= np.partition(v.q, -count, axis=-1)[:, -count, None])


def _nucleus(v: View, mass: float) -> Floats:
    return _ratios_cut_to(v, v.below("q", "probability") < mass)


def _without_last(v: View) -> Floats:
    """End the cut target one token earlier."""
    least = np.where(v.q > 0, v.q, np.inf).min(-1, keepdims=True)
    return np.where(v.support > 1, _ratios_cut_to(v, v.q > least), 1.0)


def _mixture(v: View) -> Floats:
    within = np.where(v.q > 0, v.p, 0.0).sum(-1)
    return np.where(within > 0, v.at(v.p) / np.maximum(within, TINY), 1.0)


def _acceptance_of(q: Floats, p: Floats) -> Floats:
    """min(1, q / p)."""
    return np.minimum(1.0, q / np.maximum(p, TINY))


def acceptance(v: View) -> Floats:
    """[n] the probability with which each token would have been accepted; 1 where nothing is drafted."""
    return v.entry(_acceptance_of(v.q, v.p)) if v.p.size else np.ones(len(v.x))


def _corrected(v: View, kept: Floats, rest: Floats | None = None) -> Floats:
    """Ratios of [n, m] probabilities ``kept`` of drafting and accepting a token, with the remaining mass
    drawn from ``rest``.
    """
    left = np.maximum(1 - kept.sum(-1), 0.0)
    return np.asarray(v.at(kept) + left * v.at(v.residual if rest is None else rest))


def _accepts(v: View, law: Rows) -> Floats:
    """Test drafted tokens by another law than modified rejection's, with that law's residual."""
    return _corrected(v, law(v))


def _picks(v: View, law: Rows) -> Floats:
    """Draw drafted tokens from another law than the one they are tested with."""
    return _corrected(v, law(v) * _acceptance_of(v.q, v.p))


def _tests_raw(v: View) -> Floats:
    return _corrected(v, v.p * _acceptance_of(v.q, v.raw), _residual(v.q, v.raw))


def _corrects(v: View, law: Rows) -> Floats:
    """Replace a rejected token from another law than the residual."""
    return _corrected(v, np.minimum(v.p, v.q), _normalised(law(v)))


def _normalised(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(rows.sum(-1, keepdims=True), TINY))


def _powered(rows: Floats, power: float) -> Floats:
    return _normalised(rows**power)


def cut_to(rows: Floats, count: int) -> Floats:
    """Cut rows [..., m] to so many of their most probable tokens; 0: to none."""
    if not 0 < count < rows.shape[-1]:
        return rows
    return _normalised(rows * (rows >= np.partition(rows, -count, axis=-1)[..., -count, None]))


def _target_without_rejected(v: View) -> Floats:
    rejected = (v.p - np.minimum(v.p, v.q)) / np.maximum(1 - v.q, 1e-9)
    return np.asarray(v.q * (rejected.sum(-1, keepdims=True) - rejected))


def _draft_above(v: View, least: float) -> Floats:
    """[n, m] the draft's tokens of at least that probability; a row without any drafts nothing."""
    return np.asarray(v.p * (v.p >= least))


def _drafts_above(v: View, least: float) -> Floats:
    return _normalised(_draft_above(v, least))


def _leaves_out(v: View, least: float) -> Floats:
    """Leave out a drafted token below that probability; the target draws in its place."""
    stays = _draft_above(v, least)
    kept = np.minimum(stays, v.q)
    left, rejected = (np.maximum(each, 0.0) for each in (1 - stays.sum(-1), (stays - kept).sum(-1)))
    return np.asarray(left + v.at(kept) + rejected * v.at(v.residual))


# --- siblings -----------------------------------------------------------------------------------------

_FEW = 32
"""Rows of at most so many possible tokens are looked at sibling by sibling."""


def _siblings(v: View, other: Callable[[Floats, Floats, Floats], Floats]) -> Floats:
    """Draft two siblings without replacement; after the first falls, tokens come from another law than what
    remains.

    Args:
        v: of a text.
        other: [n, m, m] that law by the sibling that fell, of the target's and the draft's rows [n, m] and of
            what the next sibling is drawn from, [n, m, m].
    """
    narrow = np.flatnonzero(((v.q + v.p) > 0).sum(-1) <= _FEW) if v.p.size else ()
    ratios = np.ones(len(v.x))
    if len(narrow):
        columns = np.argsort(-(v.q + v.p)[narrow], -1)[:, :_FEW]
        q, p = (np.take_along_axis(rows[narrow], columns, -1) for rows in (v.q, v.p))
        following = p[:, None] * (1 - np.eye(p.shape[1]))
        fell = np.maximum(p - q, 0.0)
        behind = other(q, p, following / np.maximum(1 - p, TINY)[..., None])
        law = np.minimum(p, q) + (fell[..., None] * behind).sum(1)
        ratios[narrow] = (law * (columns == v.x[narrow, None])).sum(-1) / v.own[narrow]
    return ratios


def _next_row_off(q: Floats, p: Floats, following: Floats) -> Floats:
    """Subtract the next sibling's row from the target's, in place of the row of the sibling that fell."""
    return _residual(q[:, None] + 0 * following, following)


def _not_normalised(q: Floats, p: Floats, following: Floats) -> Floats:
    """Test the next sibling with the rest of the draft's row without normalising it."""
    rest = following * (1 - p)[..., None]
    left = _residual(q, p)[:, None] + 0 * following
    kept = following * _acceptance_of(left, rest)
    return np.asarray(kept + np.maximum(1 - kept.sum(-1, keepdims=True), 0.0) * _residual(left, rest))


# --- numbers that are used twice ----------------------------------------------------------------------


def _shared_length(low: Floats, width: Floats, a: Floats, b: Floats) -> Floats:
    """[low, low + width] and [a, b]."""
    return np.asarray(np.maximum(np.minimum(low + width, b) - np.maximum(low, a), 0.0))


def _pick_tests(v: View, order: str, upper: bool) -> Floats:
    """Test a drafted token with the number that drew it."""
    return _corrected(
        v, _shared_length(v.below("p", order), v.p, *_accepting_numbers(_acceptance_of(v.q, v.p), upper))
    )


def _accepting_numbers(accepted: Floats, upper: bool) -> tuple[Floats, Floats]:
    """Their ends: from 0 on, or up to 1."""
    return (1 - accepted, np.ones_like(accepted)) if upper else (np.zeros_like(accepted), accepted)


def _test_corrects(v: View, order: str, upper: bool, *, pick: bool = False) -> Floats:
    """Draw a rejected token's replacement with its test's number; with ``pick`` that drew the draft, too."""
    low = v.below("residual", order)
    edge = _acceptance_of(v.q, v.p)
    a = v.entry(low)[:, None]
    b = a + v.entry(v.residual)[:, None]
    if upper:
        a, b = 1 - b, 1 - a
    if pick:
        first = v.below("p", order)
        kept = _shared_length(first, v.p, np.zeros_like(edge), edge)
        start = np.maximum(first, edge)
        left = np.maximum(np.minimum(first + v.p, b) - np.maximum(start, a), 0.0)
    else:
        kept = np.minimum(v.p, v.q)
        left = v.p * (np.maximum(b - edge, 0.0) - np.maximum(a - edge, 0.0))
    return np.asarray(v.at(kept) + left.sum(-1) / v.own)


def _coarse(v: View, of: str, bits: int) -> Floats:
    """Use uniform numbers of a few bits."""
    size = float(1 << bits)
    low = v.below(of, "id")
    rows = v.q if of == "q" else v.p
    points = (np.ceil((low + rows) * size - 1e-6) - np.ceil(low * size - 1e-6)) / size
    return v.at(points) if of == "q" else _corrected(v, points * _acceptance_of(v.q, rows))


def _same_numbers(v: View, source: str, order: str) -> Floats:
    """Draw tokens with numbers that were used before."""
    numbers = v.numbers[source, order]
    pick, final = ((ends[:, :1], ends[:, 1:]) for ends in (numbers.pick, numbers.final))
    q = v.at(_shared_length(v.below("q", order), v.q, *final) / (final[1] - final[0]))
    if not v.p.size:
        return q
    picked = _shared_length(v.below("p", order), v.p, *pick) / (pick[1] - pick[0])
    kept = picked * np.minimum(1.0, _acceptance_of(v.q, v.p) / numbers.test[:, None])
    rest = _shared_length(v.below("residual", order), v.residual, *final) / (final[1] - final[0])
    drafted = _corrected(v, kept, rest)
    return np.where(v.index < 0, (q + drafted) / 2, np.where(v.whole, q, drafted))


# --- laws of a drafted token, its test and its replacement --------------------------------------------


def _drafted_acceptance(v: View) -> Floats:
    """[n] min(1, q / p) of the drafted tokens."""
    return _acceptance_of(v.entry(v.q, v.tested), v.entry(v.p, v.tested))


_AT_THE_EDGE = 1e-4
"""Least probability that a drafted token is granted: rounding may have let one in that is cut off here."""


def _pick(v: View, law: Rows) -> Floats:
    """Draw drafted tokens from another law than the draft's row."""
    if not v.p.size:
        return np.ones(len(v.x))
    ratio = v.entry(law(v), v.tested) / np.maximum(v.entry(v.p, v.tested), _AT_THE_EDGE)
    return np.where(v.tested >= 0, ratio, 1.0)


def _test(v: View, law: Callable[[View, Floats], Floats]) -> Floats:
    """Accept drafted tokens with another probability than min(1, q / p)."""
    if not v.p.size:
        return np.ones(len(v.x))
    right, accepted = _drafted_acceptance(v), v.kind == "a"
    other = np.clip(law(v, right), 0.0, 1.0)
    ratio = np.where(accepted, other / np.maximum(right, TINY), (1 - other) / np.maximum(1 - right, 1e-9))
    return np.where((v.tested >= 0) & (accepted | (right < 1 - 1e-6)), ratio, 1.0)


def _replacement(v: View, law: Rows) -> Floats:
    """Draw the token after a rejection from another law than the residual."""
    rejected = (v.tested >= 0) & (v.kind == "c")
    if not v.p.size or not rejected.any():
        return np.ones(len(v.x))
    rows = law(v)
    inside = np.where(v.residual > 0, rows, 0.0).sum(-1)  # what cannot come is not bet on
    entries = v.entry(v.residual)
    ratio = v.entry(rows) / np.maximum(inside * entries, TINY)
    return np.where(rejected & (entries > 0) & (inside > 0), ratio, 1.0)


def _by_number(v: View, of: str, order: str, low: Floats, high: Floats) -> Floats:
    """[n, m] a law whose tokens are drawn with a number of [low, high], [n] each."""
    low, high = low[:, None], np.maximum(high, low + 1e-9)[:, None]
    return np.asarray(_shared_length(v.below(of, order), getattr(v, of), low, high) / (high - low))


def _picked_number(v: View, order: str) -> tuple[Floats, Floats]:
    """[n] both ends of the interval of the number that drew the drafted token."""
    low = v.entry(v.below("p", order), v.tested)
    return low, low + np.maximum(v.entry(v.p, v.tested), 1e-9)


def _picked_again(v: View, source: str, order: str) -> Floats:
    return _by_number(v, "p", order, *v.numbers[source, order].pick.T)


def _tested_by_pick(v: View, right: Floats, order: str, upper: bool) -> Floats:
    low, high = _picked_number(v, order)
    return np.asarray(_shared_length(low, high - low, *_accepting_numbers(right, upper)) / (high - low))


def _replaced_by_test(v: View, order: str) -> Floats:
    right = _drafted_acceptance(v)
    return _by_number(v, "residual", order, right, np.ones_like(right))


def _replaced_by_pick(v: View, order: str) -> Floats:
    return _by_number(v, "residual", order, *_picked_number(v, order))


# --- the table ----------------------------------------------------------------------------------------

ORDERS = ("id", "probability")
BEFORE = "the token before"
LOOP = "earlier loops"
LAST_TEST = "the last test"
THIS_LOOP = "this loop"
TEXTS = (1, 2, 3)
AGAIN = (BEFORE, LOOP, LAST_TEST, *(f"text {back} before" for back in TEXTS))
"""Where numbers may come from that are used again; ``THIS_LOOP`` is of tests alone."""


@dataclass(frozen=True, slots=True)
class Bet:
    """One row of the table.

    Attributes:
        share: how likely the law is, in a mixture with the target.
        law: [n] ratios.
        drafts: whether it says something of an engine that drafts alone.
        place: the stage of modified rejection that it is of, from the drafted tokens that an engine reports;
            empty for a law of emitted tokens, which is bet on at every place.
    """

    name: Name
    share: float
    law: Law
    drafts: bool = True
    place: str = ""


_DRAFTS: tuple[tuple[Name, float, Rows], ...] = (
    (faults.DRAFTS_HOTTER, 0.8, lambda v: _powered(v.p, 0.8)),
    (faults.DRAFTS_COLDER, 0.8, lambda v: _powered(v.p, 1.25)),
    (faults.DRAFTS_FROM_16, 0.8, lambda v: cut_to(v.p, 16)),
    (faults.DRAFTS_FROM_4, 0.8, lambda v: cut_to(v.p, 4)),
    (faults.DRAFTS_BEST, 0.5, lambda v: cut_to(v.p, 1)),
    (faults.DRAFTS_RAW, 0.8, lambda v: v.raw),
)
"""Laws of what is drafted, with their share among drafted tokens; among emitted ones all have .8."""

_ACCEPTS: tuple[tuple[Name, Rows], ...] = (
    (faults.ACCEPTS_OFTEN, lambda v: np.minimum(v.p, v.q / 0.9)),
    (faults.ACCEPTS_MUCH_TOO_OFTEN, lambda v: np.minimum(v.p, v.q / 0.5)),
    (faults.ACCEPTS_RARELY, lambda v: np.minimum(v.p, 0.9 * v.q)),
    (faults.ACCEPTS_INVERTED, lambda v: v.p * _acceptance_of(v.p, v.q)),
    (faults.ACCEPTS_BY_THRESHOLD, lambda v: v.p * (v.q >= v.p)),
    (faults.ACCEPTS_BY_TARGET, lambda v: v.p * v.q),
)
"""What is drafted and accepted by another test."""

_TESTS: tuple[tuple[Name, float, Callable[[View, Floats], Floats]], ...] = (
    (faults.ACCEPTS_OFTEN, 0.8, lambda v, right: right / 0.9),
    (faults.ACCEPTS_MUCH_TOO_OFTEN, 0.8, lambda v, right: right / 0.5),
    (faults.ACCEPTS_RARELY, 0.8, lambda v, right: 0.9 * right),
    (faults.ACCEPTS_ANY, 0.05, lambda v, right: np.ones_like(right)),
    (faults.ACCEPTS_BY_THRESHOLD, 0.8, lambda v, right: (right >= 1).astype(float)),
    (faults.ONE_NUMBER_A_LOOP, 0.8, lambda v, right: right / v.numbers[THIS_LOOP, "id"].test),
    (NumbersReused(LOOP), 0.8, lambda v, right: right / v.numbers[LOOP, "id"].test),
)
"""Probability of accepting a drafted token, from the right one [n], and the share of the bet."""

_REPLACES: tuple[tuple[Name, Rows], ...] = (
    (faults.CORRECTS_FROM_TARGET, lambda v: v.q),
    (faults.CORRECTS_FROM_DRAFT, lambda v: v.p),
    (faults.CORRECTS_FROM_DISTANCE, lambda v: np.abs(v.q - v.p)),
    (faults.CORRECTS_BY_BEST, lambda v: cut_to(v.residual, 1)),
    (faults.CORRECTS_HOTTER, lambda v: _powered(v.residual, 0.8)),
    (faults.CORRECTS_COLDER, lambda v: _powered(v.residual, 1.25)),
)
"""Laws of what replaces a rejected token."""


def _texts() -> Iterator[Bet]:  # noqa: C901 - a table
    for power in (0.8, 0.91, 0.96, 1.04, 1.1, 1.25, 2.0):
        yield Bet(faults.TemperatureTimes(1 / power), 1.0, partial(_tempered_ratios, power=power), False)
    yield Bet(faults.LEAVES_TEMPERATURE_OUT, 0.9, lambda v: _tempered_ratios(v, v.temperature), False)
    yield Bet(faults.TEMPERATURE_TWICE, 0.9, lambda v: _tempered_ratios(v, 1 / v.temperature), False)
    yield Bet(faults.MOST_PROBABLE, 0.5, _greedy, False)
    for rows, shares in (
        (faults.ANY, (0.001, 0.01)),
        (faults.BEFORE_ROW, (0.003, 0.02, 0.3)),
        (faults.OTHER_TEXT, (0.002, 0.03)),
        (faults.OTHER_ROW, (0.01, 0.1)),
    ):
        for share in shares:
            yield Bet(faults.DrawsFrom(share, rows), share, partial(_from_whole_rows, name=rows), False)
    for fault in (faults.LEAVES_OUT_STOPS, faults.SHUNS_PRESENT, faults.REPEATS_PRESENT):
        yield Bet(fault, 0.5, partial(_from_whole_rows, name=fault), False)
    yield Bet(faults.PENALISES_TWICE, 0.9, partial(_from_whole_rows, name=faults.PENALISES_TWICE))
    yield Bet(faults.ONE_TOKEN_SHORT, 0.9, _without_last, False)
    for count in (20, 40, 50):
        yield Bet(faults.CutToBest(count), 0.9, partial(_cut_to_most_probable, count=count), False)
    for mass in (0.9, 0.95, 0.99):
        yield Bet(faults.CutToMass(mass), 0.9, partial(_nucleus, mass=mass), False)
    yield Bet(faults.MIN_P, 0.9, lambda v: _ratios_cut_to(v, v.q >= 0.05 * v.q.max(-1, keepdims=True)), False)
    for bits in (8, 11):
        yield Bet(faults.CoarseNumbers(bits), 0.9, partial(_coarse, of="q", bits=bits), False)
        yield Bet(faults.CoarsePicks(bits), 0.8, partial(_coarse, of="p", bits=bits))
    for share in (0.02, 0.1, 0.5):
        yield Bet(faults.DrawsFromDraft(share), share, _mixture)
    for name, kept in _ACCEPTS:
        yield Bet(name, 0.8, partial(_accepts, law=kept))
    for name, _, drafted in _DRAFTS:
        yield Bet(name, 0.8, partial(_picks, law=drafted))
    for least in (0.1, 0.2, 0.4, 0.6, 0.8):
        yield Bet(faults.LEAVES_OUT_DRAWN, 0.9, partial(_leaves_out, least=least))
    yield Bet(faults.TESTS_RAW, 0.8, _tests_raw)
    for name, rest in (*_REPLACES, (faults.WITHOUT_REJECTED, _target_without_rejected)):
        yield Bet(name, 0.8, partial(_corrects, law=rest))
    for name, siblings in ((faults.NEXT_ROW_OFF, _next_row_off), (faults.NOT_NORMALISED, _not_normalised)):
        yield Bet(name, 0.5, partial(_siblings, other=siblings))
    for order, upper in product(ORDERS, (False, True)):
        settings: dict[str, Any] = {"order": order, "upper": upper}
        both = partial(_test_corrects, **settings)
        all_three = partial(_test_corrects, pick=True, **settings)
        yield Bet(faults.PICK_IS_TEST, 0.8, partial(_pick_tests, **settings))
        yield Bet(faults.TEST_IS_CORRECTION, 0.8, both)
        yield Bet(faults.ONE_NUMBER, 0.8, all_three)
    for source in AGAIN:
        for order in ORDERS:
            law = partial(_same_numbers, source=source, order=order)
            yield Bet(NumbersReused(source), 0.5, law, source == LAST_TEST)
        if source != LAST_TEST:
            yield Bet(faults.NoiseReused(source), 0.5, partial(_from_whole_rows, name=source), False)
    yield Bet(faults.ONE_NUMBER_A_LOOP, 0.5, partial(_same_numbers, source=THIS_LOOP, order="id"))


def _stages() -> Iterator[Bet]:
    for name, share, law in (*_DRAFTS, (faults.DRAFTS_ANY, 0.01, lambda v: _normalised(v.p > 0))):
        yield Bet(name, share, partial(_pick, law=law), place=faults.PICKS)
    for least in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5):  # above a half it is the most probable token alone
        drafted = partial(_drafts_above, least=least)
        yield Bet(faults.LEAVES_OUT_DRAWN, 0.9, partial(_pick, law=drafted), place=faults.PICKS)
    for order, source in product(ORDERS, (BEFORE, LOOP, "text 1 before")):
        again = partial(_picked_again, source=source, order=order)
        yield Bet(NumbersReused(source), 0.5, partial(_pick, law=again), place=faults.PICKS)
    for name, share, test in _TESTS:
        yield Bet(name, share, partial(_test, law=test), place=faults.TESTS)
    for order, upper in product(ORDERS, (False, True)):
        test = partial(_tested_by_pick, order=order, upper=upper)
        yield Bet(faults.PICK_IS_TEST, 0.8, partial(_test, law=test), place=faults.TESTS)
    for name, rest in _REPLACES:
        yield Bet(name, 0.5, partial(_replacement, law=rest), place=faults.REPLACED)
    for order in ORDERS:
        for name, by_number in (
            (faults.TEST_IS_CORRECTION, _replaced_by_test),
            (faults.PICK_IS_CORRECTION, _replaced_by_pick),
        ):
            rest = partial(by_number, order=order)
            yield Bet(name, 0.8, partial(_replacement, law=rest), place=faults.REPLACED)


BETS, DRAFTED = tuple(_texts()), tuple(_stages())

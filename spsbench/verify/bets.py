"""What an audit bets on: rows of a table (name, share, law), each at every place, all in one e-process.

A law says with which probability each token would come if an engine had one certain fault. Its ratio to the
target's probability has mean 1 (or less) under the target, so that a bet's wealth, the product of ratios, is
a martingale as long as what the law uses is known before the token is drawn: rows, earlier tokens, earlier
texts, and how many tokens of the running loop were accepted so far. Whether the token itself will be accepted
is not known then: no place depends on it. See ``docs/adr/0034-one-table-of-bets.md``.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spsbench.engines.external.engine import add_up
from spsbench.engines.rescore import Reading
from spsbench.report.judgement import EVERY

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_WIDEST = 1024
"""Tokens of a row that are told apart; the others are one. A law of fewer outcomes is a law."""

_TINY = 1e-200
_RARE = 0.02
"""Share of texts that the bet on copies takes to be copies."""


@dataclass(slots=True)
class View:
    """One text as the bets see it: n tokens, m columns a row (the vocabulary, or its head and the rest).

    Attributes:
        x: [n] the column of each token.
        q, p: [n, m] target and draft; p has no columns where nothing is drafted.
        raw: [n, m] the draft at temperature 1 without any cut.
        own: [n] the target's probability of each column ``x``, at least ``_TINY``.
        index: [n] place within the loop, from 0; -1 where the loops are not known.
        kind: of each token ``a``ccepted, ``c``orrected, ``b``onus or ``?``: known behind it only.
        tested: [n] the column of the drafted token that was tested there; -1 where none is known.
        support: [n] how many tokens are possible.
        ratios: [n] ratios of laws that need more than these columns, by name.
    """

    x: Ints
    q: Floats
    p: Floats
    raw: Floats
    own: Floats
    index: Ints
    kind: str
    tested: Ints
    k: int
    temperature: float
    support: Floats
    ratios: dict[str, Floats]
    numbers: dict[str, Numbers]
    residual: Floats = field(init=False)
    cache: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.residual = self.q if not self.p.size else _residual(self.q, self.p)

    @property
    def whole(self) -> Bools:
        """[n] whether all drafted tokens of the loop stand before."""
        return np.asarray((self.index == self.k) & (self.k > 0))

    def at(self, rows: Floats) -> Floats:
        """[n] ratio of each token's entry to the target's."""
        return np.asarray(self.entry(rows) / self.own)

    def entry(self, rows: Floats) -> Floats:
        """[n] each token's entry."""
        return np.asarray(rows[np.arange(len(self.x)), self.x])

    def below(self, of: str, order: str) -> Floats:
        """[n, m] mass before each column, in the order of ids or of descending probability."""
        name = of + order
        if name not in self.cache:
            rows = {"p": self.p, "q": self.q, "residual": self.residual}[of]
            self.cache[name] = _below(rows, order)
        return self.cache[name]


def _residual(q: Floats, p: Floats) -> Floats:
    left = np.maximum(q - p, 0.0)
    total = left.sum(-1, keepdims=True)
    return np.where(total > 1e-6, left / np.maximum(total, _TINY), q)


def _below(rows: Floats, order: str) -> Floats:
    if order == "id":
        return np.asarray(rows.cumsum(-1) - rows)
    places = np.argsort(-rows, axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, places, -1)
    found = np.empty_like(rows)
    np.put_along_axis(found, places, ordered.cumsum(-1) - ordered, -1)
    return found


def loops_of(
    accepted: Sequence[int], n: int, k: int, free: int, drafted: Sequence[Sequence[int]] | None
) -> tuple[Ints, str, Ints]:
    """Of each of n tokens its place in its loop, its kind and the drafted token, see ``View``."""
    index, tested, kind, place = np.full(n, -1), np.full(n, -1), ["?"] * n, free
    for loop, count in enumerate(accepted):
        ids = None if drafted is None else drafted[loop]
        size = k if ids is None else len(ids)
        for step in range(min(count + 1, n - place)):
            index[place + step] = step
            kind[place + step] = "a" if step < count else "b" if count == size else "c"
            if ids is not None and step < size:
                tested[place + step] = ids[step]
        place += count + 1
    return index, "".join(kind), tested


# --- laws of one row ----------------------------------------------------------------------------------
# Each gives [n] ratios; what a law needs of the draft is there where it is asked.

Law = Callable[[View], Floats]


def _power(v: View, power: float) -> Floats:
    """The target at another temperature."""
    return np.asarray(v.own ** (power - 1) / (v.q**power).sum(-1))


def _greedy(v: View) -> Floats:
    best = v.q.argmax(-1) == v.x
    return np.where(best, 1 / v.own, 0.0)


def _within(v: View, inside: Floats) -> Floats:
    """The target cut to a part of itself, [n, m] of 0 and 1."""
    mass = (v.q * inside).sum(-1)
    return np.where(mass > 0, v.entry(inside) / np.maximum(mass, _TINY), 1.0)


def _top(v: View, count: int) -> Floats:
    if v.q.shape[-1] <= count:
        return np.ones_like(v.own)
    edge = np.partition(v.q, -count, axis=-1)[:, -count, None]
    return _within(v, (v.q >= edge) * 1.0)


def _nucleus(v: View, mass: float) -> Floats:
    return _within(v, (v.below("q", "probability") < mass) * 1.0)


def _min_p(v: View) -> Floats:
    return _within(v, (v.q >= 0.05 * v.q.max(-1, keepdims=True)) * 1.0)


def _without_last(v: View) -> Floats:
    """What is cut ends one token early."""
    least = np.where(v.q > 0, v.q, np.inf).min(-1, keepdims=True)
    return np.where(v.support > 1, _within(v, (v.q > least) * 1.0), 1.0)


def _mixture(v: View) -> Floats:
    within = np.where(v.q > 0, v.p, 0.0).sum(-1)
    return np.where(within > 0, v.at(v.p) / np.maximum(within, _TINY), 1.0)


def _corrected(v: View, kept: Floats, rest: Floats | None = None) -> Floats:
    """[n, m] probability that a token is drafted and accepted; what is left is drawn from ``rest``."""
    left = np.maximum(1 - kept.sum(-1), 0.0)
    return np.asarray(v.at(kept) + left * v.at(v.residual if rest is None else rest))


def _ratio(q: Floats, p: Floats) -> Floats:
    """min(1, q / p): the probability of being accepted."""
    return np.minimum(1.0, q / np.maximum(p, _TINY))


def _accepts(v: View, way: str) -> Floats:
    """Another test than that of modified rejection, with its residual."""
    q, p = v.q, v.p
    ways: dict[str, Callable[[], Floats]] = {
        "too often": lambda: np.minimum(p, q / 0.9),
        "much too often": lambda: np.minimum(p, q / 0.5),
        "too rarely": lambda: np.minimum(p, 0.9 * q),
        "inverted": lambda: p * _ratio(p, q),
        "threshold": lambda: p * (q >= p),
        "by the target alone": lambda: p * q,
    }
    return _corrected(v, ways[way]())


def _picks(v: View, way: str) -> Floats:
    """Drafted tokens come from another law than the one they are tested with."""
    p, test = v.p, v.p
    if way == "best":
        pick = (p >= p.max(-1, keepdims=True)) * 1.0
        pick /= pick.sum(-1, keepdims=True)
    elif way == "raw":
        pick = v.raw
    elif way == "raw test":
        pick, test = p, v.raw
    elif way.startswith("top"):
        count = int(way[3:])
        kept = p * (p >= np.partition(p, -count, axis=-1)[:, -count, None]) if count < p.shape[-1] else p
        pick = kept / kept.sum(-1, keepdims=True)
    else:
        pick = p ** float(way)
        pick /= pick.sum(-1, keepdims=True)
    return _corrected(v, pick * _ratio(v.q, test), _residual(v.q, test) if way == "raw test" else None)


def _corrects(v: View, way: str) -> Floats:
    """A rejected token is replaced from another law than the residual."""
    q, p, left = v.q, v.p, v.residual
    kept = np.minimum(p, q)
    if way == "target":
        rest = q
    elif way == "draft":
        rest = p
    elif way == "distance":
        rest = np.abs(q - p)
    elif way == "best":
        rest = (left >= left.max(-1, keepdims=True)) * 1.0
    elif way == "others":  # the target without the token that was rejected
        rejected = (p - kept) / np.maximum(1 - q, 1e-9)
        rest = q * (rejected.sum(-1, keepdims=True) - rejected)
    else:
        rest = left ** float(way)
    return _corrected(v, kept, rest / np.maximum(rest.sum(-1, keepdims=True), _TINY))


# --- numbers that are used twice ----------------------------------------------------------------------


def _overlap(low: Floats, width: Floats, a: Floats, b: Floats) -> Floats:
    """Length of what intervals [low, low + width] share with [a, b]."""
    return np.asarray(np.maximum(np.minimum(low + width, b) - np.maximum(low, a), 0.0))


def _pick_tests(v: View, order: str, upper: bool) -> Floats:
    """The number that picked a drafted token tests it, too."""
    accepted = _ratio(v.q, v.p)
    ends = (1 - accepted, np.ones_like(accepted)) if upper else (np.zeros_like(accepted), accepted)
    return _corrected(v, _overlap(v.below("p", order), v.p, *ends))


def _test_corrects(v: View, order: str, upper: bool, *, pick: bool = False) -> Floats:
    """The number that rejected a token draws the one in its place; with ``pick`` it had picked it, too."""
    low, edge = v.below("residual", order), _ratio(v.q, v.p)
    a = v.entry(low)[:, None]
    b = a + v.entry(v.residual)[:, None]
    if upper:
        a, b = 1 - b, 1 - a
    if pick:
        first = v.below("p", order)
        kept = _overlap(first, v.p, np.zeros_like(edge), edge)
        start = np.maximum(first, edge)
        left = np.maximum(np.minimum(first + v.p, b) - np.maximum(start, a), 0.0)
    else:
        kept = np.minimum(v.p, v.q)
        left = v.p * (np.maximum(b - edge, 0.0) - np.maximum(a - edge, 0.0))
    return np.asarray(v.at(kept) + left.sum(-1) / v.own)


def _coarse(v: View, of: str, bits: int) -> Floats:
    """Uniform numbers have a few bits only."""
    size = float(1 << bits)
    low, rows = v.below(of, "id"), v.q if of == "q" else v.p
    points = (np.ceil((low + rows) * size - 1e-6) - np.ceil(low * size - 1e-6)) / size
    return v.at(points) if of == "q" else _corrected(v, points * _ratio(v.q, rows))


@dataclass(slots=True)
class Numbers:
    """[n] intervals in which a token's numbers lie: of its pick, its test (from 0 on) and its final draw."""

    pick: Floats  # [n, 2]
    test: Floats  # [n]
    final: Floats  # [n, 2]

    @classmethod
    def unknown(cls, n: int) -> Numbers:
        """Anything in [0, 1]."""
        return cls(np.tile((0.0, 1.0), (n, 1)), np.ones(n), np.tile((0.0, 1.0), (n, 1)))


def _same_numbers(v: View, whence: str, order: str) -> Floats:
    """Tokens are drawn with numbers that were used before."""
    numbers = v.numbers[whence + order]
    pick, final = ((ends[:, :1], ends[:, 1:]) for ends in (numbers.pick, numbers.final))
    q = v.at(_overlap(v.below("q", order), v.q, *final) / (final[1] - final[0]))
    if not v.p.size:
        return q
    picked = _overlap(v.below("p", order), v.p, *pick) / (pick[1] - pick[0])
    kept = picked * np.minimum(1.0, _ratio(v.q, v.p) / numbers.test[:, None])
    rest = _overlap(v.below("residual", order), v.residual, *final) / (final[1] - final[0])
    drafted = _corrected(v, kept, rest)
    return np.where(v.index < 0, (q + drafted) / 2, np.where(v.whole, q, drafted))


# --- the table ----------------------------------------------------------------------------------------

ORDERS = ("id", "probability")
BEFORE = "the token before"
LOOP = "earlier loops"
TEXTS = (1, 2, 3)
LEAVES_OUT_STOPS = "leaves out what ends a text"
_SOURCES = (BEFORE, LOOP, "the last test", *(f"text {back} before" for back in TEXTS))


@dataclass(frozen=True, slots=True)
class Bet:
    """One row of the table.

    Attributes:
        law: [n] ratios.
    """

    name: str
    share: float
    law: Law
    drafts: bool = True


def _told(name: str) -> Law:
    return lambda v: v.ratios[name]


def _table() -> Iterator[Bet]:  # noqa: C901 - a table
    for power in (0.8, 0.91, 0.96, 1.04, 1.1, 1.25, 2.0):
        yield Bet(f"draws at {1 / power:.2g} times the temperature", 1.0, partial(_power, power=power), False)
    yield Bet("leaves the temperature out", 0.9, lambda v: _power(v, v.temperature), False)
    yield Bet("applies the temperature twice", 0.9, lambda v: _power(v, 1 / v.temperature), False)
    yield Bet("takes the most probable token", 0.5, _greedy, False)
    for name, shares in (
        ("any possible token", (0.001, 0.01)),
        ("the row before", (0.003, 0.02, 0.3)),
        ("the row of another text", (0.002, 0.03)),
        ("another row of this text", (0.01, 0.1)),
    ):
        for share in shares:
            yield Bet(f"draws {share:.1%} from {name}", share, _told(name), False)
    for name in (LEAVES_OUT_STOPS, "shuns tokens that are there", "repeats tokens that are there"):
        yield Bet(name, 0.5, _told(name), False)
    yield Bet("cuts one token too many", 0.9, _without_last, False)
    for count in (20, 40, 50):
        yield Bet(f"cuts to the {count} best", 0.9, partial(_top, count=count), False)
    for mass in (0.9, 0.95, 0.99):
        yield Bet(f"cuts to a mass of {mass}", 0.9, partial(_nucleus, mass=mass), False)
    yield Bet("cuts by min-p", 0.9, _min_p, False)
    for bits in (8, 11):
        yield Bet(f"has uniform numbers of {bits} bits", 0.9, partial(_coarse, of="q", bits=bits), False)
        yield Bet(f"picks by numbers of {bits} bits", 0.8, partial(_coarse, of="p", bits=bits))
    for share in (0.02, 0.1, 0.5):
        yield Bet(f"draws {share:.0%} from the draft", share, _mixture)
    for way in ("too often", "much too often", "too rarely", "inverted", "threshold", "by the target alone"):
        yield Bet(f"accepts {way}", 0.8, partial(_accepts, way=way))
    for way, name in (
        ("best", "drafts the most probable token"),
        ("raw", "drafts without temperature and cuts"),
        ("raw test", "tests without temperature and cuts"),
        ("top16", "drafts from its 16 best"),
        ("top4", "drafts from its 4 best"),
        ("0.8", "drafts at a higher temperature"),
        ("1.25", "drafts at a lower temperature"),
    ):
        yield Bet(name, 0.8, partial(_picks, way=way))
    for way, name in (
        ("target", "corrects from the target"),
        ("others", "leaves only the rejected token out"),
        ("draft", "corrects from the draft"),
        ("distance", "corrects from the absolute distance"),
        ("best", "corrects by the most probable token"),
        ("0.8", "corrects at a higher temperature"),
        ("1.25", "corrects at a lower temperature"),
    ):
        yield Bet(name, 0.8, partial(_corrects, way=way))
    for order, upper in ((order, upper) for order in ORDERS for upper in (False, True)):
        given: dict[str, Any] = {"order": order, "upper": upper}
        yield Bet("picks and tests with one number", 0.8, partial(_pick_tests, **given))
        yield Bet("tests and corrects with one number", 0.8, partial(_test_corrects, **given))
        yield Bet(
            "has one number for pick, test and correction", 0.8, partial(_test_corrects, pick=True, **given)
        )
    for source in _SOURCES:
        for order in ORDERS:
            law = partial(_same_numbers, whence=source, order=order)
            yield Bet(f"uses the numbers of {source} again", 0.5, law, source == "the last test")
        if source != "the last test":
            yield Bet(f"uses the noise of {source} again", 0.5, _told(source), False)
    yield Bet("tests a loop with one number", 0.5, partial(_same_numbers, whence="tests", order="id"))


BETS = tuple(_table())
PICKS, TESTS, REPLACED = "the drafted tokens", "the acceptance tests", "the tokens after a rejection"


@dataclass(frozen=True, slots=True)
class Stage:
    """A bet on one stage of modified rejection, from the drafted tokens that an engine reports."""

    name: str
    place: str
    share: float
    law: Law


def _pick(v: View, law: Callable[[View], Floats]) -> Floats:
    """Drafted tokens follow another law than the draft's row."""
    if not v.p.size:
        return np.ones(len(v.x))
    rows, every = law(v), np.arange(len(v.x))
    return np.where(v.tested >= 0, rows[every, v.tested] / np.maximum(v.p[every, v.tested], _TINY), 1.0)


def _test(v: View, law: Callable[[View, Ints, Floats], Floats]) -> Floats:
    """A drafted token is accepted with another probability than min(1, q / p)."""
    if not v.p.size:
        return np.ones(len(v.x))
    every, d = np.arange(len(v.x)), np.maximum(v.tested, 0)
    right = _ratio(v.q[every, d], v.p[every, d])
    other = np.clip(law(v, d, right), 0.0, 1.0)
    accepted = np.array([kind == "a" for kind in v.kind])
    ratio = np.where(accepted, other / np.maximum(right, _TINY), (1 - other) / np.maximum(1 - right, 1e-9))
    return np.where((v.tested >= 0) & (accepted | (right < 1 - 1e-6)), ratio, 1.0)


def _replacement(v: View, law: Callable[[View, Ints, Floats], Floats]) -> Floats:
    """The token after a rejection follows another law than the residual."""
    rejected = (v.tested >= 0) & np.array([kind == "c" for kind in v.kind])
    if not v.p.size or not rejected.any():
        return np.ones(len(v.x))
    every, d = np.arange(len(v.x)), np.maximum(v.tested, 0)
    rows = law(v, d, _ratio(v.q[every, d], v.p[every, d]))
    inside = np.where(v.residual > 0, rows, 0.0).sum(-1)  # what cannot come is not bet on
    own = v.entry(v.residual)
    ratio = v.entry(rows) / np.maximum(inside * own, _TINY)
    return np.where(rejected & (own > 0) & (inside > 0), ratio, 1.0)


def _by_number(of: str, order: str, low: Floats, high: Floats, v: View) -> Floats:
    """[n, m] a law drawn with a number of [low, high], [n] each."""
    rows = v.p if of == "p" else v.residual
    low, high = low[:, None], np.maximum(high, low + 1e-9)[:, None]
    return np.asarray(_overlap(v.below(of, order), rows, low, high) / (high - low))


def _picked_number(v: View, d: Ints, order: str) -> tuple[Floats, Floats]:
    """[n] ends of the interval of the number that picked the drafted token."""
    every = np.arange(len(v.x))
    low = v.below("p", order)[every, d]
    return low, low + np.maximum(v.p[every, d], 1e-9)


def _stages() -> Iterator[Stage]:  # noqa: C901 - a table
    def powered(rows: Floats, power: float) -> Floats:
        return np.asarray(rows**power / np.maximum((rows**power).sum(-1, keepdims=True), _TINY))

    def best(rows: Floats, count: int) -> Floats:
        edge = np.partition(rows, -count, axis=-1)[:, -count, None] if count < rows.shape[-1] else 0.0
        kept = rows * (rows >= edge)
        return np.asarray(kept / np.maximum(kept.sum(-1, keepdims=True), _TINY))

    picks: dict[str, Callable[[View], Any]] = {
        "drafts at a higher temperature": lambda v: powered(v.p, 0.8),
        "drafts at a lower temperature": lambda v: powered(v.p, 1.25),
        "drafts from its 16 best": lambda v: best(v.p, 16),
        "drafts from its 4 best": lambda v: best(v.p, 4),
        "drafts the most probable token": lambda v: best(v.p, 1),
        "drafts without temperature and cuts": lambda v: v.raw,
        "drafts any token": lambda v: (v.p > 0) / np.maximum((v.p > 0).sum(-1, keepdims=True), 1),
    }
    for name, share in zip(picks, (0.8, 0.8, 0.8, 0.8, 0.5, 0.8, 0.01), strict=True):
        yield Stage(name, PICKS, share, partial(_pick, law=picks[name]))
    for order in ORDERS:
        for source in (BEFORE, LOOP, "text 1 before"):

            def again(v: View, source: str = source, order: str = order) -> Floats:
                ends = v.numbers[source + order].pick
                return _by_number("p", order, ends[:, 0], ends[:, 1], v)

            yield Stage(f"uses the numbers of {source} again", PICKS, 0.5, partial(_pick, law=again))
    tests: dict[str, Callable[[View, Ints, Floats], Floats]] = {
        "accepts too often": lambda v, d, a: a / 0.9,
        "accepts much too often": lambda v, d, a: a / 0.5,
        "accepts too rarely": lambda v, d, a: 0.9 * a,
        "accepts any token": lambda v, d, a: 0.0 * a + 1.0,
        "accepts by threshold": lambda v, d, a: (a >= 1) * 1.0,
        "tests a loop with one number": lambda v, d, a: a / v.numbers["testsid"].test,
        "uses the numbers of earlier loops again": lambda v, d, a: a / v.numbers[LOOP + "id"].test,
    }
    for name, law in tests.items():
        yield Stage(name, TESTS, 0.05 if name == "accepts any token" else 0.8, partial(_test, law=law))
    for order in ORDERS:
        for upper in (False, True):

            def by_pick(v: View, d: Ints, a: Floats, order: str = order, upper: bool = upper) -> Floats:
                low, high = _picked_number(v, d, order)
                ends = (1 - a, np.ones_like(a)) if upper else (np.zeros_like(a), a)
                return np.asarray(_overlap(low, high - low, *ends) / (high - low))

            yield Stage("picks and tests with one number", TESTS, 0.8, partial(_test, law=by_pick))
    rests: dict[str, Callable[[View, Ints, Floats], Any]] = {
        "corrects from the target": lambda v, d, a: v.q,
        "corrects from the draft": lambda v, d, a: v.p,
        "corrects from the absolute distance": lambda v, d, a: np.abs(v.q - v.p),
        "corrects by the most probable token": lambda v, d, a: best(v.residual, 1),
        "corrects at a higher temperature": lambda v, d, a: powered(v.residual, 0.8),
        "corrects at a lower temperature": lambda v, d, a: powered(v.residual, 1.25),
    }
    for name, rest in rests.items():
        yield Stage(name, REPLACED, 0.5, partial(_replacement, law=rest))
    for order in ORDERS:

        def by_test(v: View, d: Ints, a: Floats, order: str = order) -> Floats:
            return _by_number("residual", order, a, np.ones_like(a), v)

        def by_drafted(v: View, d: Ints, a: Floats, order: str = order) -> Floats:
            return _by_number("residual", order, *_picked_number(v, d, order), v)

        yield Stage("tests and corrects with one number", REPLACED, 0.8, partial(_replacement, law=by_test))
        yield Stage(
            "picks and corrects with one number", REPLACED, 0.8, partial(_replacement, law=by_drafted)
        )


DRAFTED = tuple(_stages())
FIRST = "the first token of a text"
STARTS = (9, 17, 33, 49)
WHOLE = "the token after a whole draft"
_PLACES = (
    EVERY,
    FIRST,
    *(f"tokens from the {start}th on" for start in STARTS),
    "the first token of a loop",
    "tokens after accepted ones",
    WHOLE,
    "the first loop",
)
_EVERYWHERE = 0.4
"""Weight of the bets on every token; the places share the rest."""

COPIES = "writes earlier texts again"
_COPIES = 0.05
"""Weight of the bet on copies of texts, which is of no place."""

_DRAFTED = 0.25
"""Weight of the bets on what drafted tokens show, where an engine may report them."""

_SOME = 0.1
"""Share of texts that bets in their second way take to be wrong."""

_PARTS = 1 / 64
"""Probability that a copy ends before a token."""

_MOST = 1e200
_CLEAR = 0.9
"""Share of a place's wealth from which on its best law is named."""

_FINAL = -2


@dataclass(slots=True)
class _Earlier:
    """What a text leaves behind for bets on later ones: its tokens, and the numbers that drew them."""

    ids: list[int]
    slots: list[tuple[int, int, bool]]
    intervals: dict[str, Floats]
    tests: Floats


class Bets:
    """One e-process over all bets at all places, on one engine's texts in the order in which they came."""

    def __init__(
        self,
        stop_ids: Collection[int],
        k: int | None = None,
        temperature: float = 1.0,
        *,
        modified: bool = False,
    ) -> None:
        self._stop_ids, self._k, self._temperature = sorted(stop_ids), k, temperature
        self._modified = modified
        self._bets = [bet for bet in BETS if k != 0 or not bet.drafts]
        self._free = {0, 1}
        self._texts: dict[tuple[int, ...], list[Sequence[int]]] = defaultdict(list)
        self._last: deque[_Earlier] = deque(maxlen=max(TEXTS))
        self._usual: Floats | None = None
        self._count = 0
        placed = [(bet.name, place) for bet in self._bets for place in _PLACES]
        told = [(bet.name, bet.place) for bet in DRAFTED if k != 0 and modified]
        self._stakes = [*placed, *told, (COPIES, EVERY)]
        place = np.full(len(_PLACES), (1 - _EVERYWHERE) / (len(_PLACES) - 1))
        place[0] = _EVERYWHERE
        left = 1 - _COPIES - (_DRAFTED if told else 0.0)
        weights = [
            *np.tile(place * left / len(self._bets), len(self._bets)),
            *[_DRAFTED / max(len(told), 1)] * len(told),
        ]
        self._weights = np.log([*weights, _COPIES]) + np.log([[0.5], [0.25], [0.25]])
        self._sums = np.zeros(self._weights.shape)
        self._sums[2] = -np.inf

    def add(
        self,
        prompt: tuple[int, ...],
        tokens: Sequence[int],
        reading: Reading,
        accepted: Sequence[int] | None = None,
        free: int | None = None,
        drafted: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Bet on one more text."""
        n = len(tokens)
        index, kind, tested = self._loops(accepted, n, free, drafted)
        q = reading.q.double().numpy()
        view = self._view(prompt, tokens, reading, q, index, kind, tested)
        there = q[np.arange(n), list(tokens)] > 0  # else it is an alarm by itself, or rounding
        sums = [(_logs(self._bets, view, there) @ self._places(view).T).ravel()]
        if self._k != 0 and self._modified:
            sums.append(_logs(DRAFTED, view, there).sum(-1))
        sums.append(np.array([self._copied(prompt, tokens, view.own, there)]))
        self._bet(np.concatenate(sums))
        self._remember(prompt, tokens, view, q)

    def _bet(self, text: Floats) -> None:
        """Log ratios of one text, a stake each, bet on in all three ways: see the weights."""
        self._count += 1
        self._sums[0] += text
        self._sums[1] += np.logaddexp(math.log(1 - _SOME), math.log(_SOME) + text)
        self._sums[2] = text + np.logaddexp(self._sums[2], -math.log(self._count * (self._count + 1)))

    def _wealth(self) -> Floats:
        """[times, stakes] logs of weighted wealth; what is not at stake yet is kept."""
        waiting = np.logaddexp(self._sums[2], -math.log(self._count + 1))
        return np.asarray(np.stack([self._sums[0], self._sums[1], waiting]) + self._weights)

    @property
    def log_e(self) -> float:
        """Log of the e-value after all texts so far."""
        return float(np.logaddexp.reduce(self._wealth(), axis=None))

    def leading(self) -> tuple[str, str | None]:
        """Where the e-value comes from: the place, and what is wrong there if one bet has most of it."""
        places: dict[str, float] = defaultdict(lambda: -math.inf)
        laws: dict[tuple[str, str], float] = defaultdict(lambda: -math.inf)
        for (name, place), wealth in zip(
            self._stakes, np.logaddexp.reduce(self._wealth(), axis=0), strict=True
        ):
            places[place] = np.logaddexp(places[place], wealth)
            laws[place, name] = np.logaddexp(laws[place, name], wealth)
        where = max(places, key=lambda place: places[place])
        best = max((key for key in laws if key[0] == where), key=lambda key: laws[key])
        return where, best[1] if laws[best] - places[where] > math.log(_CLEAR) else None

    def _places(self, v: View) -> Floats:
        """[places, n] 1 where a token stands there."""
        place, first = np.arange(len(v.x)), np.cumsum(v.index == 0) == 1
        masks = [place >= 0, place == 0, *(place >= start - 1 for start in STARTS)]
        masks += [v.index == 0, (v.index > 0) & ~v.whole, v.whole, first & (v.index >= 0)]
        return np.stack([np.asarray(mask, dtype=np.float64) for mask in masks])

    # --- what laws need beside a row ---

    def _loops(
        self,
        accepted: Sequence[int] | None,
        n: int,
        free: int | None,
        drafted: Sequence[Sequence[int]] | None,
    ) -> tuple[Ints, str, Ints]:
        """Of every token its place in its loop, its kind, and the drafted token tested there (-1: none).

        Nothing is known until one reading of the counts is left: an engine's first token may come from its
        prefill, before the first loop.
        """
        unknown = np.full(n, -1), "?" * n, np.full(n, -1)
        if accepted is None or not self._k or any(not 0 <= count <= self._k for count in accepted):
            return unknown
        possible = {f for f in (0, 1) if add_up(list(accepted), n - f) and free in (None, f)}
        # Known before this text was drawn: its own length and counts must not decide how it is bet on.
        known, self._free = self._free, self._free & possible
        if (free is None and len(known) != 1) or len(self._free) != 1:
            return unknown
        return loops_of(accepted, n, self._k or 0, min(self._free), drafted)

    def _view(
        self,
        prompt: tuple[int, ...],
        tokens: Sequence[int],
        reading: Reading,
        q: Floats,
        index: Ints,
        kind: str,
        tested: Ints,
    ) -> View:
        p = raw = np.empty((len(tokens), 0))
        if self._k != 0 and reading.p is not None and reading.draft_logits is not None:
            p = reading.p.double().numpy()
            raw = reading.draft_logits.double().softmax(-1).numpy()
        every, x = np.arange(len(tokens)), np.asarray(tokens, dtype=np.int64)
        own, possible = np.maximum(q[every, x], _TINY), q > 0
        support = possible.sum(-1) * 1.0
        ratios = self._ratios(prompt, x, q, own, possible)
        ratios["any possible token"] = 1 / (support * own)
        for source, ids in self._references(x, index):
            seen = ids >= 0
            mass = np.where(seen, q[every, ids], 0.0)
            ratios[source] = _tilted((ids == x) & seen, mass, 4.0)
        if q.shape[-1] > _WIDEST:
            (x, tested), q, p, raw = _head((x, tested), q, p, raw)
        own = np.maximum(q[every, x], _TINY)
        k, temperature = self._k or 0, self._temperature
        view = View(x, q, p, raw, own, index, kind, tested, k, temperature, support, ratios, {})
        view.numbers = self._numbers(view)
        return view

    def _ratios(
        self, prompt: tuple[int, ...], x: Ints, q: Floats, own: Floats, possible: Bools
    ) -> dict[str, Floats]:
        """Of laws that look at whole rows and at what stands before a token."""
        every = np.arange(len(x))
        seen = np.zeros((len(x), q.shape[-1]), dtype=bool)
        seen[:, list(prompt)] = True
        for n, token in enumerate(x[:-1], start=1):
            seen[n:, token] = True
        there, mass = seen[every, x], np.where(seen, q, 0.0).sum(-1)
        stops = np.isin(x, self._stop_ids)
        stop = np.minimum(q[:, self._stop_ids].sum(-1), 1 - 1e-12)
        before = np.vstack([q[:1], q[:-1]])
        mean = np.vstack([q[:1], (q.cumsum(0) / (every + 1)[:, None])[:-1]])
        usual = q if self._usual is None else np.broadcast_to(self._usual / self._usual.sum(), q.shape)
        rows = {"the row before": before, "another row of this text": mean, "the row of another text": usual}
        found = {}
        for name, other in rows.items():
            inside = np.where(possible, other, 0.0).sum(-1)
            found[name] = np.where(inside > 0, other[every, x] / np.maximum(inside * own, _TINY), 1.0)
        return found | {
            LEAVES_OUT_STOPS: np.where(stops, 0.0, 1 / (1 - stop)),
            "shuns tokens that are there": _tilted(there, mass, 0.5),
            "repeats tokens that are there": _tilted(there, mass, 2.0),
        }

    def _references(self, x: Ints, index: Ints) -> Iterator[tuple[str, Ints]]:
        """(source, [n] the token that the source of each number drew; -1 for none)."""
        yield BEFORE, np.concatenate([[-1], x[:-1]])
        latest: dict[int, int] = {}
        earlier = np.full(len(x), -1)
        for n, (token, place) in enumerate(zip(x, index, strict=True)):
            if place >= 0:
                earlier[n] = latest.get(int(place), -1)
                latest[int(place)] = int(token)
        yield LOOP, earlier
        for back in TEXTS:
            ids = self._last[-back].ids if len(self._last) >= back else []
            yield f"text {back} before", np.array([*ids, *[-1] * len(x)][: len(x)])

    def _numbers(self, v: View) -> dict[str, Numbers]:
        n = len(v.x)
        found = {name + order: Numbers.unknown(n) for name in _SOURCES for order in ORDERS}
        found["testsid"] = Numbers.unknown(n)
        slots = _slots(v)
        ratio = np.ones(n) if not v.p.size else v.entry(_ratio(v.q, v.p))
        for order in ORDERS:
            own = _intervals(v, order)
            before, loop, test = (found[name + order] for name in (BEFORE, LOOP, "the last test"))
            before.pick[1:] = before.final[1:] = own[:-1]
            known: dict[int, Floats] = {}
            tests: dict[int, float] = {}
            for t, (_, step, final) in enumerate(slots):
                if t and v.kind[t - 1] == "a":
                    test.pick[t] = (0.0, max(ratio[t - 1], 1e-9))
                if v.index[t] < 0:
                    continue
                loop.pick[t] = known.get(int(v.index[t]), (0.0, 1.0))
                loop.final[t] = known.get(_FINAL, (0.0, 1.0))
                loop.test[t] = tests.get(int(v.index[t]), 1.0)
                slot = _FINAL if final else step
                known[slot] = _both(known.get(slot), own[t])
                if not final:
                    tests[step] = min(tests.get(step, 1.0), max(ratio[t], 1e-9))
            for back in TEXTS:
                if len(self._last) >= back:
                    _aligned(found[f"text {back} before{order}"], v, self._last[-back], order)
        low = 1.0
        for t in range(n):
            low = 1.0 if v.index[t] <= 0 else low
            found["testsid"].test[t] = low
            if v.kind[t] == "a":
                low = min(low, max(ratio[t], 1e-9))
        return found

    def _copied(self, prompt: tuple[int, ...], tokens: Sequence[int], own: Floats, there: Bools) -> float:
        """Log e-value of one text against its being an earlier one of its prompt, or beginning like it."""
        alive = self._texts[prompt]
        copied, parted = 1.0, 0.0
        for t, token in enumerate(tokens):
            hits = [text for text in alive if t < len(text) and text[t] == token]
            parted += copied * _PARTS
            copied *= (1 - _PARTS) * len(hits) / max(len(alive), 1) / own[t]
            alive = hits
            if not alive or not there[t] or copied > _MOST:
                break
        return math.log(1 - _RARE + _RARE * min(parted + copied, _MOST)) if self._texts[prompt] else 0.0

    def _remember(self, prompt: tuple[int, ...], tokens: Sequence[int], v: View, q: Floats) -> None:
        self._texts[prompt].append(tokens)
        tests = np.ones(len(tokens)) if not v.p.size else v.entry(_ratio(v.q, v.p))
        intervals = {order: _intervals(v, order) for order in ORDERS}
        self._last.append(_Earlier(list(tokens), _slots(v), intervals, tests))
        self._usual = q.sum(0) + (0.0 if self._usual is None else self._usual)


def _tilted(hit: Bools, mass: Floats, factor: float) -> Floats:
    """Tokens of a set are ``factor`` times as likely, before all is normalised."""
    return np.where(hit, factor, 1.0) / (1 + (factor - 1) * mass)


def _logs(bets: Sequence[Bet | Stage], view: View, there: Bools) -> Floats:
    """[bets, n] logs of mixtures with the target; nothing is bet on impossible tokens."""
    with np.errstate(all="ignore"):  # of those nothing is read
        ratios = np.stack([1 - bet.share + bet.share * bet.law(view) for bet in bets])
        return np.where(there, np.log(np.maximum(ratios, _TINY)), 0.0)


def _both(known: Floats | None, own: Floats) -> Floats:
    """What two intervals share; the later one where they share nothing."""
    if known is None:
        return own
    low, high = max(known[0], own[0]), min(known[1], own[1])
    return np.array((low, high)) if high - low > 1e-9 else own


def _intervals(v: View, order: str) -> Floats:
    """[n, 2] where the number lies that drew each token: in the draft's row, the residual or the target's."""
    found = np.empty((len(v.x), 2))
    for of, kinds in (("q", "b?"), ("p", "a"), ("residual", "c")):
        rows = {"p": v.p, "q": v.q, "residual": v.residual}[of]
        mask = [kind in kinds for kind in v.kind]
        if rows.size and any(mask):
            low = v.entry(v.below(of, order))
            found[mask] = np.stack([low, low + np.maximum(v.entry(rows), 1e-9)], -1)[mask]
    return found


def _slots(v: View) -> list[tuple[int, int, bool]]:
    """Of each token its loop, its place in it, and whether the loop's final number drew it."""
    loops = np.cumsum(v.index == 0)
    return [(int(loops[t]), int(v.index[t]), v.kind[t] in "bc") for t in range(len(v.x))]


def _aligned(numbers: Numbers, v: View, earlier: _Earlier, order: str) -> None:
    """Numbers of an earlier text's same loop and place; of the same token where loops are not known."""
    own = earlier.intervals[order]
    if (v.index < 0).all():
        n = min(len(v.x), len(own))
        numbers.pick[:n] = numbers.final[:n] = own[:n]
        return
    there = {(loop, _FINAL if final else step): own[t] for t, (loop, step, final) in enumerate(earlier.slots)}
    loops = np.cumsum(v.index == 0)
    for t in range(len(v.x)):
        numbers.pick[t] = there.get((int(loops[t]), int(v.index[t])), (0.0, 1.0))
        numbers.final[t] = there.get((int(loops[t]), _FINAL), (0.0, 1.0))


def _head(
    ids: tuple[Ints, Ints], q: Floats, p: Floats, raw: Floats
) -> tuple[tuple[Ints, Ints], Floats, Floats, Floats]:
    """Rows of their most probable tokens, in the order of ids, and one column for all others."""
    weight = np.maximum(q, p) if p.size else q
    columns = np.sort(np.argpartition(-weight, _WIDEST, axis=-1)[:, :_WIDEST], axis=-1)

    def cut(rows: Floats) -> Floats:
        kept = np.take_along_axis(rows, columns, -1)
        return np.concatenate([kept, np.maximum(rows.sum(-1) - kept.sum(-1), 0.0)[:, None]], -1)

    def column(tokens: Ints) -> Ints:
        hits = columns == tokens[:, None]
        return np.where(tokens < 0, -1, np.where(hits.any(-1), hits.argmax(-1), _WIDEST))

    x, tested = (column(each) for each in ids)
    return (x, tested), cut(q), cut(p) if p.size else p, cut(raw) if raw.size else raw

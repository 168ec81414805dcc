"""One e-process over all bets at all places, on one engine's texts."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch

from spsbench.base import Bools, Floats, Ints, Message, Processing
from spsbench.decode import warp, with_history
from spsbench.engines import Reading
from spsbench.parts.audit.bet_table import (
    AGAIN,
    BEFORE,
    BETS,
    DRAFTED,
    LAST_TEST,
    LOOP,
    ORDERS,
    TEXTS,
    THIS_LOOP,
    TINY,
    Bet,
    Kinds,
    Numbers,
    View,
    acceptance,
)
from spsbench.parts.audit.messages import faults
from spsbench.parts.audit.rare import Neighbour, OtherRows, Rare
from spsbench.parts.external.engine import add_up
from spsbench.report import EVERY
from spsbench.store import RareShares

STARTS = (9, 17, 33, 49)


def _from(start: int, v: View) -> Bools:
    return np.arange(len(v.x)) >= start - 1


_PLACES: dict[str, Callable[[View], Bools]] = {
    EVERY: lambda v: np.arange(len(v.x)) >= 0,
    faults.FIRST_OF_TEXT: lambda v: np.arange(len(v.x)) == 0,
    **{str(faults.TokensFrom(start)): partial(_from, start) for start in STARTS},
    faults.FIRST_OF_LOOP: lambda v: v.index == 0,
    faults.AFTER_ACCEPTED: lambda v: (v.index > 0) & ~v.whole,
    faults.AFTER_WHOLE_DRAFT: lambda v: v.whole,
    faults.FIRST_LOOP: lambda v: (np.cumsum(v.index == 0) == 1) & (v.index >= 0),
}
"""Of each place, where in a text it is."""

_OF_WHOLE_ROWS = (faults.ANY, faults.BEFORE_ROW, faults.OTHER_ROW, faults.OTHER_TEXT)

_EVERYWHERE = 0.4
"""Weight of the bets on every token; the places share the rest."""

_COPIES = 0.05
"""Weight of the bet on copies of texts, which is of no place."""

_DRAFTED = 0.25
"""Weight of the bets on what drafted tokens show, where an engine may report them."""

RARELY = 0.2
"""Weight of the bets on what goes wrong rarely, see ``rare``."""

_SOME = 0.1
"""Share of texts that bets in their second way take to be wrong."""

_COPIED = 0.02
"""Share of texts that the bet on copies takes to be copies."""

_PARTS = 1 / 64
"""Probability that a copy ends before a token."""

_MOST = 1e200
_CLEAR = 0.9
"""Share of a place's wealth from which on its best law is named."""

_WIDEST = 1024
"""Tokens of a row that are told apart; the others are one. A law of fewer outcomes is a law."""

_FINAL = -2
_LEAST = 1e-9  # width of an interval of numbers

Loops = tuple[Ints, Kinds, Ints]
"""Of n tokens the place in the loop, the kind and the drafted token, see ``View``."""


def loops_of(
    accepted: Sequence[int], n: int, k: int, free: int, drafted: Sequence[Sequence[int]] | None
) -> Loops:
    """Lay out the loops of a text after ``free`` tokens; each drafts K, unless ``drafted`` is known."""
    index, kind, tested = _unknown_loops(n)
    place = free
    for loop, count in enumerate(accepted):
        ids = None if drafted is None else drafted[loop]
        size = k if ids is None else len(ids)
        for step in range(min(count + 1, n - place)):
            index[place + step] = step
            kind[place + step] = "a" if step < count else "b" if count == size else "c"
            if ids is not None and step < size:
                tested[place + step] = ids[step]
        place += count + 1
    return index, kind, tested


def _unknown_loops(n: int) -> Loops:
    return np.full(n, -1), np.full(n, "?"), np.full(n, -1)


@dataclass(slots=True)
class _Earlier:
    """What a text leaves behind for bets on later ones: its tokens, and the numbers that drew them."""

    ids: list[int]
    slots: list[tuple[int, int]]
    intervals: dict[str, Floats]


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
        self._stop_ids = sorted(stop_ids)
        self._k = k
        self._temperature = temperature
        self._modified = modified
        self._bets = [bet for bet in BETS if k != 0 or not bet.drafts]
        self._free = {0, 1}
        self._texts: dict[tuple[int, ...], list[Sequence[int]]] = defaultdict(list)
        self._last: deque[_Earlier] = deque(maxlen=max(TEXTS))
        self._usual: Floats | None = None
        self._count = 0
        self.rare = Rare()
        placed = [(bet.name, place) for bet in self._bets for place in _PLACES]
        of_drafts = [(bet.name, bet.place) for bet in DRAFTED if k != 0 and modified]
        self._stakes = [*placed, *of_drafts, (faults.COPIES, EVERY)]
        place = np.full(len(_PLACES), (1 - _EVERYWHERE) / (len(_PLACES) - 1))
        place[0] = _EVERYWHERE
        left = 1 - _COPIES - (_DRAFTED if of_drafts else 0.0)
        weights = [
            *np.tile(place * left / len(self._bets), len(self._bets)),
            *[_DRAFTED / max(len(of_drafts), 1)] * len(of_drafts),
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
        q = reading.q.double().numpy()
        others = OtherRows(q, self._usual, self.rare.neighbour)
        view = self._view(prompt, tokens, reading, others, self._loops(accepted, len(tokens), free, drafted))
        there = q[np.arange(len(tokens)), list(tokens)] > 0  # else it is an alarm by itself, or rounding
        self.rare.add(others, np.asarray(tokens, dtype=np.int64))
        places = np.array([is_there(view) for is_there in _PLACES.values()], np.float64)  # [places, n]
        sums = [(_logs(self._bets, view, there) @ places.T).ravel()]
        if self._k != 0 and self._modified:
            sums.append(_logs(DRAFTED, view, there).sum(-1))
        sums.append(np.array([self._copy_log_e(prompt, tokens, view.own, there)]))
        text = np.concatenate(sums)  # of each stake, which is bet in all three ways: see the weights
        self._count += 1
        self._sums[0] += text
        self._sums[1] += np.logaddexp(math.log(1 - _SOME), math.log(_SOME) + text)
        self._sums[2] = text + np.logaddexp(self._sums[2], -math.log(self._count * (self._count + 1)))
        self._remember(prompt, tokens, view, q)

    def _wealth(self) -> Floats:
        """[times, stakes] logs of weighted wealth; a stake that has not begun keeps its weight."""
        waiting = np.logaddexp(self._sums[2], -math.log(self._count + 1))
        return np.asarray(np.stack([self._sums[0], self._sums[1], waiting]) + self._weights)

    @property
    def log_e(self) -> float:
        """Log of the e-value after all texts so far."""
        often = float(np.logaddexp.reduce(self._wealth(), axis=None)) + math.log(1 - RARELY)
        return float(np.logaddexp(often, self.rare.log_e + math.log(RARELY)))

    def leading(self) -> tuple[str, str | None]:
        """Return the place that gives the e-value, and the fault if one bet has most of the evidence."""
        places: dict[str, float] = defaultdict(lambda: -math.inf)
        laws: dict[tuple[str, Message | str], float] = defaultdict(lambda: -math.inf)
        for (name, place), wealth in zip(
            self._stakes, np.logaddexp.reduce(self._wealth(), axis=0), strict=True
        ):
            places[place] = np.logaddexp(places[place], wealth)
            laws[place, name] = np.logaddexp(laws[place, name], wealth)
        where = max(places, key=lambda place: places[place])
        if self.rare.log_e + math.log(RARELY) > places[where] + math.log(1 - RARELY):
            return self.rare.leading()
        best = max((key for key in laws if key[0] == where), key=lambda key: laws[key])
        return where, str(best[1]) if laws[best] - places[where] > math.log(_CLEAR) else None

    def rare_shares(
        self, read: Callable[[int, Sequence[int] | None], Floats], needed: float, *, exact: bool
    ) -> RareShares | None:
        """Return what ``Rare.power`` says.

        Args:
            read: gives the rows [n, V] of the text with that number, or of other tokens in its place.
            needed: of ``log_e``.
        """
        usual = self._usual
        # As many rows as a text has tokens, of the whole vocabulary: of one text at a time.
        rows = lru_cache(maxsize=1)(lambda number: read(number, None))

        def others(number: int, tokens: Ints) -> OtherRows:
            before = Neighbour(rows(number - 1), self.rare.tokens_of(number - 1))
            return OtherRows(read(number, tokens.tolist()), usual, before)

        return self.rare.power(others, needed - math.log(RARELY), exact=exact)

    # --- what laws need beside a row ---

    def _loops(
        self,
        accepted: Sequence[int] | None,
        n: int,
        free: int | None,
        drafted: Sequence[Sequence[int]] | None,
    ) -> Loops:
        """Lay out the loops of a text of n tokens.

        Nothing is known until one reading of the counts is left: an engine's first token may come from its
        prefill, before the first loop.
        """
        if accepted is None or not self._k or any(not 0 <= count <= self._k for count in accepted):
            return _unknown_loops(n)
        possible = {f for f in (0, 1) if add_up(list(accepted), n - f) and free in (None, f)}
        # Known before this text was drawn: its own length and counts must not decide how it is bet on.
        known = self._free
        self._free = self._free & possible
        if (free is None and len(known) != 1) or len(self._free) != 1:
            return _unknown_loops(n)
        return loops_of(accepted, n, self._k, min(self._free), drafted)

    def _view(
        self,
        prompt: tuple[int, ...],
        tokens: Sequence[int],
        reading: Reading,
        others: OtherRows,
        loops: Loops,
    ) -> View:
        index, kind, tested = loops
        q = others.q
        p = raw = np.empty((len(tokens), 0))
        if self._k != 0 and reading.p is not None and reading.draft_logits is not None:
            p = reading.p.double().numpy()
            raw = reading.draft_logits.double().softmax(-1).numpy()
        x = np.asarray(tokens, dtype=np.int64)
        support = others.support * 1.0
        ratios = self._whole_row_ratios(prompt, x, others, index)
        ratios[faults.PENALISES_TWICE] = _penalised_twice(reading, x, q, index)
        if q.shape[-1] > _WIDEST:
            (x, tested), (q, p, raw) = _probable_columns((x, tested), (q, p, raw))
        view = View(x, q, p, raw, index, kind, tested, self._k or 0, self._temperature, support, ratios)
        view.numbers = self._numbers(view)
        return view

    def _whole_row_ratios(
        self, prompt: tuple[int, ...], x: Ints, others: OtherRows, index: Ints
    ) -> dict[str, Floats]:
        q, every = others.q, np.arange(len(x))
        seen = np.zeros((len(x), q.shape[-1]), dtype=bool)
        seen[:, list(prompt)] = True
        for n, token in enumerate(x[:-1], start=1):
            seen[n:, token] = True
        there = seen[every, x]
        mass = np.where(seen, q, 0.0).sum(-1)
        stops = np.isin(x, self._stop_ids)
        stop = np.minimum(q[:, self._stop_ids].sum(-1), 1 - 1e-12)
        ratios = {
            **{name: others.ratios(name, x) for name in _OF_WHOLE_ROWS},
            faults.LEAVES_OUT_STOPS: np.where(stops, 0.0, 1 / (1 - stop)),
            faults.SHUNS_PRESENT: tilted(there, mass, 0.5),
            faults.REPEATS_PRESENT: tilted(there, mass, 2.0),
        }
        for source, ids in self._reused_tokens(x, index):
            known = ids >= 0
            ratios[source] = tilted((ids == x) & known, np.where(known, q[every, ids], 0.0), 4.0)
        return ratios

    def _reused_tokens(self, x: Ints, index: Ints) -> Iterator[tuple[str, Ints]]:
        """(source, [n] the token that each number drew there; -1 for none)."""
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

    def _numbers(self, v: View) -> dict[tuple[str, str], Numbers]:
        n, slots = len(v.x), _slots(v)
        numbers = {(source, order): Numbers.unknown(n) for source in (*AGAIN, THIS_LOOP) for order in ORDERS}
        passed = np.maximum(acceptance(v), _LEAST)
        for order in ORDERS:
            intervals = _intervals(v, order)
            before, loop, test = (numbers[source, order] for source in (BEFORE, LOOP, LAST_TEST))
            before.pick[1:] = before.final[1:] = intervals[:-1]
            known: dict[int, Floats] = {}
            tests: dict[int, float] = {}
            for t, (_, slot) in enumerate(slots):
                if t and v.kind[t - 1] == "a":
                    test.pick[t] = (0.0, passed[t - 1])
                step = int(v.index[t])
                if step < 0:
                    continue
                loop.pick[t] = known.get(step, (0.0, 1.0))
                loop.final[t] = known.get(_FINAL, (0.0, 1.0))
                loop.test[t] = tests.get(step, 1.0)
                known[slot] = _intersection(known.get(slot), intervals[t])
                if slot != _FINAL:
                    tests[step] = min(tests.get(step, 1.0), passed[t])
            for back, earlier in enumerate(reversed(self._last), start=1):
                _align(numbers[f"text {back} before", order], v, slots, earlier, order)
        low = 1.0
        for t in range(n):
            low = 1.0 if v.index[t] <= 0 else low
            numbers[THIS_LOOP, "id"].test[t] = low
            if v.kind[t] == "a":
                low = min(low, passed[t])
        return numbers

    def _copy_log_e(self, prompt: tuple[int, ...], tokens: Sequence[int], own: Floats, there: Bools) -> float:
        """Of a text against an earlier one of its prompt, or one that begins like it."""
        earlier = self._texts[prompt]
        return math.log(1 - _COPIED + _COPIED * copied(earlier, tokens, own, there)) if earlier else 0.0

    def _remember(self, prompt: tuple[int, ...], tokens: Sequence[int], v: View, q: Floats) -> None:
        self._texts[prompt].append(tokens)
        intervals = {order: _intervals(v, order) for order in ORDERS}
        self._last.append(_Earlier(list(tokens), _slots(v), intervals))
        self._usual = q.sum(0) + (0.0 if self._usual is None else self._usual)


def copied(
    earlier: Sequence[Sequence[int]], tokens: Sequence[int] | Ints, own: Floats, there: Bools
) -> float:
    """Return the e-value of a text against its being an earlier one, or beginning like it."""
    alive, whole, parted = earlier, 1.0, 0.0
    for t, token in enumerate(tokens):
        if not there[t]:  # an alarm by itself, or rounding
            break
        hits = [text for text in alive if t < len(text) and text[t] == token]
        parted += whole * _PARTS
        whole *= (1 - _PARTS) * len(hits) / max(len(alive), 1) / own[t]
        alive = hits
        if not alive or whole > _MOST:
            break
    return min(parted + whole, _MOST)


def _penalised_twice(reading: Reading, x: Ints, q: Floats, index: Ints) -> Floats:
    """[n] ratios of a law that applies the penalties once more to tokens of the running loop."""
    process = reading.sampling.process or Processing()
    again = Processing(
        repetition_penalty=process.repetition_penalty,
        presence_penalty=process.presence_penalty,
        frequency_penalty=process.frequency_penalty,
    )
    ratios = np.ones(len(x))
    there = np.flatnonzero(index > 0)
    if again.follows_history and len(there):
        rows = [with_history(reading.logits[n, None], again, x[n - index[n] : n].tolist(), 0) for n in there]
        other = warp(torch.cat(rows), reading.sampling).double().numpy()
        ratios[there] = other[np.arange(len(there)), x[there]] / np.maximum(q[there, x[there]], TINY)
    return ratios


def tilted(hit: Bools, mass: Floats, factor: float) -> Floats:
    """Return ratios of a law in which tokens of a set are ``factor`` times as likely, then normalised."""
    return np.where(hit, factor, 1.0) / (1 + (factor - 1) * mass)


def _logs(bets: Sequence[Bet], view: View, there: Bools) -> Floats:
    """[bets, n] logs of mixtures with the target; nothing is bet on impossible tokens."""
    with np.errstate(all="ignore"):  # of those nothing is read
        ratios = np.stack([1 - bet.share + bet.share * bet.law(view) for bet in bets])
        return np.where(there, np.log(np.maximum(ratios, TINY)), 0.0)


def _intersection(known: Floats | None, own: Floats) -> Floats:
    """The later interval where they share nothing."""
    if known is None:
        return own
    low = max(known[0], own[0])
    high = min(known[1], own[1])
    return np.array((low, high)) if high - low > _LEAST else own


def _intervals(v: View, order: str) -> Floats:
    """[n, 2] the interval of the number that drew each token: in the row of draft, residual or target."""
    intervals = np.empty((len(v.x), 2))
    for of, kinds in (("q", "b?"), ("p", "a"), ("residual", "c")):
        rows = getattr(v, of)
        mask = np.isin(v.kind, list(kinds))
        if rows.size and mask.any():
            low = v.entry(v.below(of, order))
            intervals[mask] = np.stack([low, low + np.maximum(v.entry(rows), _LEAST)], -1)[mask]
    return intervals


def _slots(v: View) -> list[tuple[int, int]]:
    """Each token's loop, and which of its numbers drew it: that of the token's place, or the final one."""
    slots = np.where(np.isin(v.kind, ["b", "c"]), _FINAL, v.index)
    return list(zip(np.cumsum(v.index == 0).tolist(), slots.tolist(), strict=True))


def _align(numbers: Numbers, v: View, slots: list[tuple[int, int]], earlier: _Earlier, order: str) -> None:
    """Take an earlier text's numbers at the same loop and place; at the same token if loops are unknown."""
    intervals = earlier.intervals[order]
    if (v.index < 0).all():
        n = min(len(v.x), len(intervals))
        numbers.pick[:n] = numbers.final[:n] = intervals[:n]
        return
    there = dict(zip(earlier.slots, intervals, strict=True))
    for t, (loop, _) in enumerate(slots):
        numbers.pick[t] = there.get((loop, int(v.index[t])), (0.0, 1.0))
        numbers.final[t] = there.get((loop, _FINAL), (0.0, 1.0))


def _probable_columns(
    ids: tuple[Ints, Ints], every: tuple[Floats, Floats, Floats]
) -> tuple[Iterator[Ints], Iterator[Floats]]:
    """Reduce rows to their most probable tokens, in the order of ids, and one column for all others.
    ``ids`` are two of [n] tokens, -1 for none; ``every`` rows of target, draft and draft without cuts,
    whose columns may be missing.
    """
    q, p, _ = every
    weight = np.maximum(q, p) if p.size else q
    columns = np.sort(np.argpartition(-weight, _WIDEST, axis=-1)[:, :_WIDEST], axis=-1)

    def cut(rows: Floats) -> Floats:
        if not rows.size:
            return rows
        kept = np.take_along_axis(rows, columns, -1)
        return np.concatenate([kept, np.maximum(rows.sum(-1) - kept.sum(-1), 0.0)[:, None]], -1)

    def column(tokens: Ints) -> Ints:
        hits = columns == tokens[:, None]
        return np.where(tokens < 0, -1, np.where(hits.any(-1), hits.argmax(-1), _WIDEST))

    return map(column, ids), map(cut, every)

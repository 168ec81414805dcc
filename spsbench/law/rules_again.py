"""The decisions of a loop derived again, rule by rule, from the rows that it had and its seed's numbers.

The rules of ``decode.trees`` decide by more than a finished text shows: which siblings fell before one stood,
what was left of the target's row, how probable it was that a longer prefix would stand. With the rows at
hand each test and each draw follows again. Nothing of ``decode`` is used: the rules are written down a second
time, in float64 over whole rows, and every decision is judged at the place where the loop really was.

The loop itself computed in float32. How far that may have moved a row is carried along with it, so that a
number within that distance of an edge is rounding and one beyond it a contradiction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spsbench.law.evidence import CLOSEST, DECIDED, Sums

Row = NDArray[np.float64]

_ROOT = -1
_RELATIVE = 1e-6  # of a float32 probability after a few operations
_SOLVED = 1e-4  # of SpecTr's scale, which is found by bisection over sums in float32
_MANY = 1e300  # a ratio beyond any test


class RuledLoop(NamedTuple):
    """One loop with everything that it decided by.

    Attributes:
        drafted: [n] the drafted ids, in the order of drawing.
        parents: [n] the node that each comes after, -1 for the pending token.
        target: [n + 1, V] the target's rows: behind the pending token, and behind each node.
        draft: [n, V] the rows that the ids were drawn from, zeros where one was certain; None if all were.
        path: the nodes that stood.
        token: drawn behind them.
        numbers: [2K + 1] of its seed: the first n picked, the last n + 1 tested and drew.
    """

    drafted: Sequence[int]
    parents: Sequence[int]
    target: NDArray[Any]
    draft: NDArray[Any] | None
    path: Sequence[int]
    token: int
    numbers: Sequence[float]

    @property
    def tests(self) -> Sequence[float]:
        """[n + 1] the numbers of the tests and of the draw."""
        return self.numbers[-len(self.drafted) - 1 :]

    def below(self, node: int) -> list[int]:
        """The nodes that come after a node, in the order of drawing."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def row(self, node: int) -> _Left:
        """The target's row behind a node."""
        return _Left.of(self.target[node + 1])

    def drawn_from(self, node: int, *, certain: bool = False) -> Row:
        """The row that a node was drawn from; a point mass where it was certain."""
        if self.draft is not None and not certain and self.draft[node].any():
            probs: Row = self.draft[node].astype(np.float64)
            return probs
        point = np.zeros(self.target.shape[-1])
        point[self.drafted[node]] = 1.0
        return point


class _Left(NamedTuple):
    """What is left of a row, and how far rounding may have moved each entry, [V] both."""

    weights: Row
    error: Row

    @classmethod
    def of(cls, probs: NDArray[Any]) -> _Left:
        """A row as the loop had it."""
        wide = probs.astype(np.float64)
        return cls(wide, _RELATIVE * wide)

    def without(self, taken: Row, share: float = 1.0, unsure: float = 0.0) -> tuple[_Left, float, float]:
        """(share * row - taken)+ normalised, its mass before, and that mass's error.

        As in the limit, a row of which nothing is left stays what it was.
        """
        rest = share * self.weights - taken
        error = share * self.error + unsure * self.weights + _RELATIVE * taken
        # An entry that rounding alone puts below 0 may have stayed.
        open_ = np.where(rest > -error, error, 0.0)
        kept = np.maximum(rest, 0.0)
        mass, doubt = float(kept.sum()), float(open_.sum())
        if mass <= 0:
            return self._replace(error=self.error + open_), mass, doubt
        return _Left(kept / mass, (open_ + kept * (doubt / mass)) / mass), mass, doubt


@dataclass(slots=True)
class _Tally:
    """Counts decisions that follow, that rounding explains and that nothing explains."""

    decided: int = 0
    rounding: int = 0
    contradicted: int = 0
    unfounded: int = 0
    closest: float = 1.0
    _open: bool = False

    def count(self, *, follows: bool, near: bool, margin: float) -> None:
        self.decided += 1
        if follows:
            self.closest = min(self.closest, margin)
        elif near:
            self.rounding += 1
        elif self._open:
            self.unfounded += 1
        else:
            self.contradicted += 1

    def test(self, u: float, level: float, error: float, *, stood: bool) -> None:
        """Count a test: it stood if its number lay below the level."""
        certain = level <= 0 or level >= 1 or math.isnan(level)
        near = abs(level - u) <= error + _RELATIVE
        self.count(follows=(u < level) == stood, near=near, margin=math.inf if certain else abs(level - u))

    def draw(self, left: _Left, u: float, token: int) -> None:
        """Count a draw: the token lies where its number falls in the cumulative weights."""
        reached = left.weights.cumsum()
        total, point = reached[-1], u * reached[-1]
        upper, weight = reached[token], left.weights[token]
        lower = upper - weight
        doubt = float(left.error.sum()) + _RELATIVE * total
        near = (weight > 0 or left.error[token] > 0) and max(lower - point, point - upper) <= doubt
        # The two ends of the unit interval are not edges: no number lies beyond them.
        below, above = lower > doubt, total - upper > doubt
        edges = [point - lower] * bool(below) + [upper - point] * bool(above)
        follows = int(reached.searchsorted(point, side="right")) == token
        self.count(follows=follows, near=bool(near), margin=min(edges, default=math.inf) / total)

    def picks(self, loop: RuledLoop, *, own_way: bool) -> None:
        """Count the draft's picks; of a drafter with a way of its own those that do not follow are open."""
        self._open = own_way
        for node, token in enumerate(loop.drafted):
            if loop.draft is not None and loop.draft[node].any():
                self.draw(_Left.of(loop.draft[node]), loop.numbers[node], token)
        self._open = False

    def sums(self) -> Sums:
        return {
            DECIDED: float(self.decided),
            f"{DECIDED}_rounding": float(self.rounding),
            f"{DECIDED}_contradicted": float(self.contradicted),
            f"{DECIDED}_open": float(self.unfounded),
            CLOSEST: self.closest,
        }


def _ratio(left: _Left, drawn_from: Row, token: int) -> tuple[float, float]:
    """The target's probability of a token over the draft's, and its error."""
    q, p = float(left.weights[token]), float(drawn_from[token])
    if p <= 0:  # it was not drawn from this row: its pick is a contradiction already
        return (_MANY if q > 0 else 0.0), 0.0
    return q / p, float(left.error[token]) / p + _RELATIVE * q / p


def _step(loop: RuledLoop, depth: int) -> int | None:
    """The node at which a loop went on at a depth; None where it drew."""
    return loop.path[depth] if depth < len(loop.path) else None


def _siblings_in_turn(loop: RuledLoop, tally: _Tally, *, certain: bool) -> None:
    node = _ROOT
    for depth in range(len(loop.path) + 1):
        left, stood = loop.row(node), _step(loop, depth)
        for child in loop.below(node):
            drawn_from = loop.drawn_from(child, certain=certain)
            tally.test(
                loop.tests[child], *_ratio(left, drawn_from, loop.drafted[child]), stood=child == stood
            )
            if child == stood:
                node = child
                break
            left, _, _ = left.without(drawn_from)
        else:
            tally.draw(left, loop.tests[-1], loop.token)
            return


def recursive_rejection(loop: RuledLoop, tally: _Tally) -> None:
    """Derive each sibling's test, then the draw (Miao et al. 2023, Algorithm 2; Chen et al. 2024)."""
    _siblings_in_turn(loop, tally, certain=False)


def one_hot(loop: RuledLoop, tally: _Tally) -> None:
    """Derive the same of proposals of one token each (Li et al. 2024, EAGLE-2)."""
    _siblings_in_turn(loop, tally, certain=True)


def sample_and_compare(loop: RuledLoop, tally: _Tally) -> None:
    """Derive the target's own draw at each depth; a sibling that says the same must have stood."""
    node = _ROOT
    for depth, number in enumerate(loop.tests[: len(loop.path) + 1]):
        stood, same = _step(loop, depth), loop.below(node)
        token = loop.token if stood is None else loop.drafted[stood]
        tally.draw(loop.row(node), number, token)
        if stood is None:
            if any(loop.drafted[child] == token for child in same):
                tally.contradicted += 1
            return
        node = stood


def traversal(loop: RuledLoop, tally: _Tally) -> None:
    """Derive the tests from the leaves up, then the draw behind what stands (Weng et al. 2025, Algorithm 1;
    of a chain Sun et al. 2024, Algorithm 2)."""
    _traverse(loop, tally, _ROOT, 1.0, 0.0, depth=0)


def _traverse(loop: RuledLoop, tally: _Tally, node: int, chance: float, unsure: float, depth: int) -> bool:
    """Whether something below a node or the node itself stood; ``chance``: that its path may stand."""
    left = loop.row(node)
    for child in loop.below(node):
        drawn_from = loop.drawn_from(child)
        ratio, error = _ratio(left, drawn_from, loop.drafted[child])
        below = min(chance * ratio, 1.0)
        off = 0.0 if below == 1.0 < chance * ratio - error else unsure * ratio + chance * error
        if _traverse(loop, tally, child, below, off, depth + 1):
            return True
        left, mass, doubt = left.without(drawn_from, chance, unsure)
        room = mass + 1.0 - chance
        if room > 0:
            # d(mass / room): by the mass, by the chance.
            unsure = (doubt * (1.0 - chance) + unsure * mass) / room**2
            chance = mass / room
        else:
            unsure, chance = 1.0, 1.0
    if node == _ROOT:
        tally.draw(left, loop.tests[-1], loop.token)
        return True
    stood = depth == len(loop.path) and loop.path[-1] == node
    tally.test(loop.tests[node], chance, unsure, stood=stood)
    if stood:
        tally.draw(left, loop.tests[-1], loop.token)
    return stood


def k_seq(loop: RuledLoop, tally: _Tally) -> None:
    """Derive the one test of each place's siblings, then the draw (Sun et al. 2023, SpecTr, Algorithm 2)."""
    node = _ROOT
    for depth in range(len(loop.path) + 1):
        left, siblings, stood = loop.row(node), loop.below(node), _step(loop, depth)
        if not siblings:
            tally.draw(left, loop.tests[-1], loop.token)
            return
        drawn_from = loop.drawn_from(siblings[0])
        scale = _scale(left.weights, drawn_from, len(siblings))
        for child in siblings:
            ratio, error = _ratio(left, drawn_from, loop.drafted[child])
            level, off = ratio / scale, (error + _SOLVED * ratio) / scale
            tally.test(loop.tests[child], level, off, stood=child == stood)
            if child == stood:
                node = child
                break
        else:
            shared = np.minimum(drawn_from, left.weights / scale)
            beta = float(shared.sum())
            share = (1.0 - (1.0 - beta) ** len(siblings)) / beta if beta else 0.0
            rest, _, _ = left.without(share * shared)
            unsure = _Left(rest.weights, rest.error + _SOLVED * rest.weights)
            tally.draw(unsure, loop.tests[-1], loop.token)
            return


def _scale(q: Row, p: Row, siblings: int) -> float:
    """The least scale from 1 to the number of siblings at which as much is accepted as the residual has room
    for: 1 - (1 - beta)^k = scale * beta."""
    from scipy.optimize import brentq

    def excess(scale: float) -> float:
        beta = float(np.minimum(p, q / scale).sum())
        return 1.0 - (1.0 - beta) ** siblings - scale * beta

    if siblings == 1 or excess(1.0) <= 0:
        return 1.0
    return float(brentq(excess, 1.0, float(siblings), xtol=1e-12))


RULES: dict[str, Callable[[RuledLoop, _Tally], None]] = {
    "sample-and-compare": sample_and_compare,
    "block": traversal,
    "traversal": traversal,
    "recursive-rejection": recursive_rejection,
    "one-hot": one_hot,
    "k-seq": k_seq,
}
"""The rules, by their names, whose decisions are derived here; modified rejection has ``rederive``."""


def derived(rule: str, loop: RuledLoop, *, own_way: bool = False) -> Sums:
    """Derive the decisions of one loop again; the sums are those of ``rederive.rederive``.

    Args:
        rule: one of ``RULES``.
        own_way: the drafter may pick in a way of its own, see ``rederive.rederive``.
    """
    tally = _Tally()
    tally.picks(loop, own_way=own_way)
    RULES[rule](loop, tally)
    return tally.sums()

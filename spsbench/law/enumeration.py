"""The exact law of one loop, for any drafter and any rule, found by probing both as black boxes.

What a drafter proposes and what a rule decides are piecewise constant in each uniform number. So the cube of
a loop's numbers falls into boxes; their edges are found by bisection. It asks first where published rules
have theirs; none is taken from a formula. From the inside of each box the production loop is then run once,
and what it emits weighs as much as the box.

Assumed: along one number, pieces are wider than the grid's spacing or lie between different neighbours; and
that a number matters shows with the later ones at a few settings. Where that fails the law comes out wrong,
and a comparison with the target's law fails: the error is on the safe side.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode.algorithms import DecodedLoop, start, start_tree
from spsbench.decode.beam import Node
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.processors import with_history
from spsbench.decode.protocols import Drafter, LanguageModel, read_prompt
from spsbench.decode.rejection import ROOT, Accept, Draft, judged
from spsbench.decode.rows import Rows
from spsbench.decode.sampling import ScriptedUniforms, warp
from spsbench.law.optimum import Tree

RowFunction = Callable[[tuple[int, ...]], Sequence[float]]


class TableModel:
    """Logits of a function from contexts to probability rows, for exact proofs and tests.

    Rows are memoized: each context is evaluated once, by all tables of one function.

    Args:
        rows: maps a context (all tokens so far) to V probabilities; zeros are allowed.
        vocab_size: V.
        dtype: of the logits; float64 in exact proofs.
    """

    def __init__(self, rows: RowFunction, vocab_size: int, dtype: torch.dtype = torch.float64) -> None:
        self.vocab_size = vocab_size
        self._rows = rows
        self._dtype = dtype
        self._fed: list[int] = []
        self._known = _known_logits(rows, dtype)

    @property
    def length(self) -> int:
        """Number of tokens in the current context."""
        return len(self._fed)

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt)

    def room_behind(self, prompt: Sequence[int]) -> int:
        return 1 << 30

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._fed += tokens.tolist()
        end = len(self._fed)
        return torch.stack([self._logits(tuple(self._fed[:i])) for i in range(end - last + 1, end + 1)])

    def rollback(self, length: int) -> None:
        del self._fed[length:]

    def _logits(self, context: tuple[int, ...]) -> Tensor:
        if context not in self._known:
            self._known[context] = torch.tensor(self._rows(context), dtype=self._dtype).log()
        return self._known[context]


@lru_cache(maxsize=64)
def _known_logits(rows: RowFunction, dtype: torch.dtype) -> dict[tuple[int, ...], Tensor]:
    """By context; an enumeration builds its tables again for every question."""
    return {}


class TableTree:
    """A table, or another language model, as a ``TreeModel``: it reads each text in line, once."""

    def __init__(self, table: LanguageModel) -> None:
        self._prompt = tuple[int, ...]()
        self._row = cache(lambda text: table.score(table.begin(text), last=1).clone())

    def begin(self, prompt: Sequence[int]) -> None:
        self._prompt = tuple(prompt)

    def score(self, nodes: Sequence[Node]) -> Tensor:
        return torch.cat([self._row((*self._prompt, *node.tokens())) for node in nodes])

    def keep(self, nodes: Sequence[Node]) -> None:
        """Keep everything."""


@lru_cache(maxsize=64)
def random_rows(vocab_size: int, seed: int, sharpness: float = 1.0) -> RowFunction:
    """Return random but fixed rows: the same context gives the same probabilities in every process.

    Args:
        vocab_size: V.
        seed: models with different seeds differ.
        sharpness: scale of the Gaussian logits; larger is more peaked.
    """

    @lru_cache(maxsize=4096)
    def row(context: tuple[int, ...]) -> Sequence[float]:
        state = 0x9E3779B97F4A7C15
        for number in (seed, *context):
            state = (state ^ (number + 0x9E3779B9)) * 0xBF58476D1CE4E5B9 % (1 << 63)
        generator = torch.Generator().manual_seed(state)
        logits = torch.randn(vocab_size, dtype=torch.float64, generator=generator) * sharpness
        return tuple(logits.softmax(-1).tolist())

    return row


Law = dict[tuple[int, ...], float]
"""Probability of each tuple of tokens."""

Point = tuple[float, ...]
Ask = Callable[[Point], Hashable]
Answer = Callable[[float], Hashable]

# How exactly an edge is found: far below what the laws are compared to, and above the rounding of a cumsum.
_FINE = 2.0**-49
_BELOW_ONE = 1 - 2.0**-53
_GRID = (0.0, *(i / 8 + 0.01 for i in range(8)), _BELOW_ONE)
_SETTINGS = (0.0, 0.37, _BELOW_ONE)
# No number decides among so many tokens of the small vocabularies that are enumerated.
_MOST_SEARCHES = 100


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a loop's law depends on.

    Attributes:
        target: rows in float64.
        make: builds a new drafter; it must not remember what an earlier one did.
        accept: the rule.
        prompt: at least one token.
        k: lookahead; of trees the most nodes.
        sampling: the target's; the drafter has its own.
        before: the uniform numbers [2K+1] of loops that come before: the law is of the loop after them.
        depth: of trees the most tokens in a branch; None for chains.
    """

    target: TableModel
    make: Callable[[], Drafter]
    accept: Accept
    prompt: tuple[int, ...]
    k: int
    sampling: SamplingParams
    before: tuple[Point, ...] = ()
    depth: int | None = None


class Proposal(NamedTuple):
    """One draft of a loop.

    Attributes:
        chance: its probability.
        picks: [K] uniform numbers by which it is drawn.
        rows: the target's, behind the pending token and each drafted one.
        draft: what was proposed.
    """

    chance: float
    picks: Point
    rows: Rows
    draft: Draft


class Path(NamedTuple):
    """One way through a loop; the ways of all boxes add up to 1.

    Attributes:
        chance: its probability.
        numbers: [2K+1] uniform numbers that lead through it.
        tokens: the 1 to K+1 tokens that it emits.
        drafted: how many tokens were proposed.
        dtype: of the rows that they were reportedly drawn from; float64 for point masses.
        draft: what was proposed.
    """

    chance: float
    numbers: Point
    tokens: tuple[int, ...]
    drafted: int
    dtype: torch.dtype
    draft: Draft


EXACT = 1e-12
"""Probabilities in float64 that differ by less are the same."""

ROUNDED = 1e-6
"""The same for a drafter whose rows are float32, as its own counts may be."""


class Difference(NamedTuple):
    """Where the law of a loop, completed by the target to K+1 tokens, is farthest from the target's.

    Attributes:
        context: the tokens before the loop.
        tokens: the K+1 tokens.
        law: their probability by the loop.
        target: their probability by the target alone.
        drafted: every number of tokens that was proposed on the way.
        limit: a difference that rounding alone may cause.
        variation: total variation of the two laws.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    law: float
    target: float
    drafted: frozenset[int]
    limit: float
    variation: float

    @property
    def size(self) -> float:
        """How far the two are apart."""
        return abs(self.law - self.target)

    @property
    def is_none(self) -> bool:
        """Whether both are the same law; a difference that is not a number is one."""
        return self.size < self.limit


class NotAFunction(AssertionError):
    """A drafter or a rule answers the same numbers in different ways: it draws with random numbers other than
    those given."""


def law_of_loop(scene: Scene) -> Law:
    """Compute the probability of each tuple of 1 to K+1 tokens that the loop can emit."""
    law: Law = defaultdict(float)
    for path in paths(scene):
        law[path.tokens] += path.chance
    return dict(law)


def law_of_drafts(scene: Scene) -> dict[Tree, float]:
    """Compute the probability of each draft of the loop, as ``optimum.most_tokens`` takes it."""
    law: dict[Tree, float] = defaultdict(float)
    for path in paths(scene):
        law[_nested(path.draft, ROOT)] += path.chance
    return dict(law)


def _nested(draft: Draft, node: int) -> Tree:
    below = [child for child, parent in enumerate(draft.above) if parent == node]
    return tuple((int(draft.tokens[child]), _nested(draft, child)) for child in below)


def earlier_loops(scene: Scene) -> tuple[tuple[tuple[int, ...], int], ...]:
    """(tokens, accepted) of the loops before: with the prompt all that a drafter has seen of the rule."""
    return tuple((tuple(loop.tokens), loop.accepted) for loop in _started(scene, ())[1])


def proposals(scene: Scene) -> Iterator[Proposal]:
    """Every draft of the loop; their chances add up to 1.

    Raises:
        NotAFunction: what is proposed does not follow from the drafter's numbers.
    """
    drawn = _Edges()

    def proposes(point: Point) -> Hashable:
        """The drafted tokens by the drafter's K numbers; the rows that it reports hint where edges lie."""
        drafter, before, _ = _started(scene, ())
        numbers = torch.tensor(point, dtype=torch.float64)
        draft = drafter.draft(list(_tokens_before_loop(scene, before)), scene.k, numbers)
        if draft.parents is not None and scene.depth is None:
            raise AssertionError("a tree was proposed to a loop of chains: name ``Scene.depth``")
        if draft.probs is not None:
            drawn.hint(draft.probs.double().cumsum(-1).flatten().tolist())
        return (*draft.tokens.tolist(), None, *(draft.parents or ()))

    for chance, picks in boxes(proposes, scene.k, drawn):
        seen = _run(scene, picks + (0.5,) * (scene.k + 1))[1]
        assert seen.draft is not None
        yield Proposal(chance, picks, seen.target_rows, seen.draft)


def paths(scene: Scene, proposed: Iterable[Proposal] | None = None) -> Iterator[Path]:
    """Every way through the loop.

    Args:
        scene: of the loop.
        proposed: its drafts, where they were enumerated before: another rule that made the same of
            ``earlier_loops`` has the same.

    Raises:
        NotAFunction: what is proposed or decided does not follow from the loop's numbers.
    """
    known = _Edges()
    for chance, picks, q, draft in proposals(scene) if proposed is None else proposed:
        tested = len(draft.tokens) + 1
        idle = (0.5,) * (scene.k + 1 - tested)
        dtype = torch.float64 if draft.probs is None else draft.probs.dtype
        known.hint(_likely_edges(q, draft))

        def judges(point: Point, q: Rows = q, draft: Draft = draft) -> Hashable:
            """(accepted, token, path) by the rule's numbers."""
            verdict = judged(scene.accept, q, draft, torch.from_numpy(np.array(point)))
            return int(verdict.accepted), int(verdict.token), verdict.path

        for weight, tests in boxes(judges, tested, known):
            numbers = picks + idle + tests
            tokens = tuple(_run(scene, numbers)[1].tokens)
            yield Path(chance * weight, numbers, tokens, tested - 1, dtype, draft)


def _likely_edges(q: Rows, draft: Draft) -> list[float]:
    """Where rules often change their answer: ratios of the two models, sums of rows and of residuals.

    They spare half of the questions; a rule that has its edges elsewhere costs a few more.
    """
    rows = q.dense().double()
    above, told = rows[[parent + 1 for parent in draft.above]], draft.rows(rows.shape[-1], torch.float64)
    if told.shape != above.shape:
        return []  # a faulty drafter's
    tokens, left = draft.tokens.unsqueeze(1), (above - told).clamp(min=0.0).cumsum(-1)
    ratios = above.gather(1, tokens) / told.gather(1, tokens)
    edges = torch.cat([part.flatten() for part in (ratios, rows.cumsum(-1), left / left[:, -1:])])
    return [edge for edge in edges.tolist() if 0.0 < edge < 1.0]


def worst_difference(scene: Scene, proposed: Iterable[Proposal] | None = None) -> Difference:
    """Compare the law of the loop with the target's over K+1 tokens; ``proposed`` as of ``paths``."""
    context, length = _run(scene, (0.5,) * (2 * scene.k + 1))[0], (scene.depth or scene.k) + 1
    ours: Law = defaultdict(float)
    follows = cache(partial(target_law, scene))
    drafted, limit = set[int](), EXACT
    for path in paths(scene, proposed):
        drafted.add(path.drafted)
        limit = limit if path.dtype == torch.float64 else ROUNDED
        rests = follows(context + path.tokens, length - len(path.tokens))
        for rest, probability in rests.items():
            ours[path.tokens + rest] += path.chance * probability
    theirs = target_law(scene, context, length)
    apart = {x: abs(ours.get(x, 0.0) - theirs.get(x, 0.0)) for x in ours.keys() | theirs}
    # What is not a number is the worst of all.
    worst = max(apart, key=lambda x: math.inf if math.isnan(apart[x]) else apart[x])
    both = ours.get(worst, 0.0), theirs.get(worst, 0.0)
    return Difference(context, worst, *both, frozenset(drafted), limit, sum(apart.values()) / 2)


def target_law(scene: Scene, context: tuple[int, ...], length: int) -> Law:
    """Compute the probability of each continuation of a context that the target alone can write."""
    if length == 0:
        return {(): 1.0}
    logits = scene.target.score(scene.target.begin(context), last=1)
    logits = with_history(logits, scene.sampling.history, context, len(scene.prompt))
    row = warp(logits, scene.sampling)[0].tolist()
    return {
        (token, *rest): probability * chance
        for token, probability in enumerate(row)
        if probability > 0
        for rest, chance in target_law(scene, (*context, token), length - 1).items()
    }


def _run(scene: Scene, numbers: Point) -> tuple[tuple[int, ...], DecodedLoop]:
    """The production loop under scripted uniform numbers, after the tokens before it."""
    _, before, loops = _started(scene, numbers)
    return _tokens_before_loop(scene, before), next(loops)


def _tokens_before_loop(scene: Scene, before: Sequence[DecodedLoop]) -> tuple[int, ...]:
    return (*scene.prompt, *(token for loop in before for token in loop.tokens))


def _started(scene: Scene, numbers: Point) -> tuple[Drafter, list[DecodedLoop], Iterator[DecodedLoop]]:
    """Everything up to the loop under test, which gets ``numbers``."""
    drafter = scene.make()
    script = ScriptedUniforms(torch.tensor(each, dtype=torch.float64) for each in (*scene.before, numbers))
    given = (drafter, scene.prompt, scene.k, scene.sampling, script, scene.accept)
    begin = (
        start(scene.target, *given) if scene.depth is None else start_tree(TableTree(scene.target), *given)
    )
    loops = begin(Stopwatch(FakeClock()))
    return drafter, [next(loops) for _ in scene.before], loops


class _Edges:
    """Edges found before, and hints: where to ask first. A wrong one costs two questions, no more."""

    def __init__(self) -> None:
        self._sorted: list[float] = []

    def hint(self, edges: Sequence[float]) -> None:
        """Remember some, each once."""
        for edge in edges:
            place = bisect_left(self._sorted, edge - _FINE)
            if place == len(self._sorted) or self._sorted[place] > edge + _FINE:
                insort(self._sorted, edge)

    def between(self, low: float, high: float) -> float | None:
        """The middle one of those inside, well away from both ends."""
        first, last = bisect_right(self._sorted, low + 2 * _FINE), bisect_left(self._sorted, high - 2 * _FINE)
        return self._sorted[(first + last) // 2] if first < last else None


def boxes(ask: Ask, axes: int, known: _Edges, fixed: Point = ()) -> Iterator[tuple[float, Point]]:
    """(volume, a point inside) of boxes that fill the unit cube and on each of which ``ask`` is constant."""
    ask = ask if fixed else cache(ask)
    later = axes - len(fixed) - 1
    if later < 0:
        yield 1.0, fixed
        return
    if not _matters(ask, later, fixed):
        yield from boxes(ask, axes, known, (*fixed, 0.5))
        return
    settings = _SETTINGS if later else _SETTINGS[:1]
    answers = [_along(ask, fixed, (setting,) * later) for setting in settings]
    for low, high in pairwise([0.0, *_edges(answers, known), 1.0]):
        for volume, point in boxes(ask, axes, known, (*fixed, (low + high) / 2)):
            yield (high - low) * volume, point


def _matters(ask: Ask, later: int, fixed: Point) -> bool:
    """Whether the next number changes anything: asked at three of its values, the later ones at their ends.

    There every test that is open at all goes either way, and a draw gives its first and its last token.
    """
    corners = product((0.0, _BELOW_ONE), repeat=later)
    return any(len({ask((*fixed, u, *corner)) for u in (0.0, 0.5, _BELOW_ONE)}) > 1 for corner in corners)


def _along(ask: Ask, fixed: Point, rest: Point) -> Answer:
    """The answer as a function of one number, with those before it fixed and those after it set."""
    return lambda u: ask((*fixed, u, *rest))


def _edges(answers: Sequence[Answer], known: _Edges) -> Iterator[float]:
    """Where any of some piecewise constant functions on [0, 1) changes, ascending."""
    low, here = _GRID[0], [answer(_GRID[0]) for answer in answers]
    searches = 0
    for high in _GRID[1:]:
        while changed := _changed(answers, here, high):
            edge = high
            # The first change of one of them may lie after one of another.
            while changed:
                searches += 1
                if searches > _MOST_SEARCHES:
                    raise NotAFunction("what is proposed or decided does not follow from the numbers given")
                edge = _first_change(changed[0], low, edge, known)
                # A token that rounding alone left in a residual has a piece that is narrower than that.
                changed = _changed(answers, here, max(edge - _FINE, low))
            known.hint([edge])
            yield edge
            low, here = edge, [answer(edge) for answer in answers]
        low = high


def _changed(answers: Sequence[Answer], here: Sequence[Hashable], u: float) -> list[Answer]:
    """Those whose answer at u is another one."""
    return [answer for answer, old in zip(answers, here, strict=True) if answer(u) != old]


def _first_change(answer: Answer, low: float, high: float, known: _Edges) -> float:
    """A number in (low, high], where the two answers differ, at which the one of ``low`` ends."""
    here = answer(low)
    while high - low > _FINE:
        edge = known.between(low, high)
        for middle in ((low + high) / 2,) if edge is None else (edge - _FINE / 2, edge + _FINE / 2):
            if answer(middle) != here:
                high = middle
                break
            low = middle
    return high

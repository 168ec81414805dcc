"""The law of a production loop with any drafter, by enumeration; what the drafter tells is not believed.

The probability of each draft is measured: the numbers at which a pick changes are found by bisection, so
that a drafter that tells other rows than it draws from gives another law than the target's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from spsbench.decode import algorithms, rejection
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import Drafter
from spsbench.decode.sampling import warp
from spsbench.decode.table import TableModel
from spsbench.records import SamplingParams

Law = dict[tuple[int, ...], float]
_BELOW_ONE = 1 - 2**-53
_PIECES = 8
"""Into how many parts [0, 1) is cut before the search for edges: picks need not be in order."""


@dataclass
class Scene:
    """A drafter in some state.

    Attributes:
        target: the target.
        make: a new drafter each time.
        prompt: of the sequence.
        k: lookahead.
        sampling: of the target.
        before: [2K+1] numbers of each loop that comes before the one looked at.
    """

    target: TableModel
    make: Callable[[], Drafter]
    prompt: tuple[int, ...]
    k: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    before: tuple[Tensor, ...] = ()

    def loop(self, u: Tensor) -> tuple[tuple[int, ...], algorithms.DecodedLoop]:
        """(the sequence before the loop, the loop under these numbers)."""
        drafter, numbers = self.make(), iter([*self.before, u])
        self.target.rollback(0)
        if self.prompt[:-1]:
            self.target.score(torch.tensor(self.prompt[:-1]), last=1)
        drafter.begin(self.prompt)
        watch = Stopwatch(FakeClock())
        loops = algorithms.sps(
            self.target, drafter, self.prompt, self.k, self.sampling, lambda n: next(numbers), watch
        )
        tokens = self.prompt
        for _ in self.before:
            tokens += tuple(next(loops).tokens)
        return tokens, next(loops)

    def draft(self, picks: list[float]) -> rejection.Draft:
        """What is proposed under these picks; the other numbers do not matter to it."""
        draft = self.loop(self.numbers(picks))[1].draft
        assert draft is not None
        return draft

    def numbers(self, picks: list[float], tests: list[float] | None = None, last: float = 0.5) -> Tensor:
        """A loop's numbers: picks from the left, tests and the final draw from the right."""
        tests = tests or []
        middle = [0.5] * (2 * self.k - len(picks) - len(tests))
        return torch.tensor([*picks, *middle, *tests, last], dtype=torch.float64)


def law_error(scene: Scene) -> float:
    """Largest difference between the law of a loop and the target's over K+1 tokens."""
    tokens, _ = scene.loop(scene.numbers([]))
    length = scene.k + 1
    ours = completed(loop_law(scene, tokens), scene.target, tokens, length, scene.sampling)
    theirs = dict(continuations(scene.target, tokens, length, scene.sampling))
    return max(abs(ours.get(x, 0.0) - theirs.get(x, 0.0)) for x in ours.keys() | theirs.keys())


def loop_law(scene: Scene, tokens: tuple[int, ...]) -> Law:
    """Probability of each tuple of tokens that the loop can emit behind ``tokens``."""
    law: Law = defaultdict(float)
    for chance, picks in drafts(scene, []):
        draft = scene.draft(picks)
        path = tuple(draft.tokens.tolist())
        rows = [row(scene.target, tokens + path[:i], scene.sampling) for i in range(len(path) + 1)]
        for reach, tests, weights in verdicts(torch.stack(rows), draft):
            for _, probability, last in choices(weights):
                law[tuple(scene.loop(scene.numbers(picks, tests, last))[1].tokens)] += (
                    chance * reach * probability
                )
    return law


def verdicts(q: Tensor, draft: rejection.Draft) -> Iterator[tuple[float, list[float], Tensor]]:
    """For each number of accepted tokens its chance, tests that lead there and the final draw's weights."""
    p, k = draft.rows(q.shape[-1], q.dtype), len(draft.tokens)
    own = torch.arange(k), draft.tokens
    accept = rejection.acceptance_probability(q[own], p[own]).tolist()
    reach = 1.0
    for n in range(k + 1):
        chance = reach * (1 - accept[n] if n < k else 1.0)
        if chance > 0:
            tests = [a / 2 for a in accept[:n]] + [(1 + a) / 2 for a in accept[n : n + 1]]
            weights = rejection.residual(q[n], p[n]) if n < k else q[k]
            yield chance, tests + [0.5] * (k - len(tests)), weights
        reach *= accept[n] if n < k else 0.0


def drafts(scene: Scene, picks: list[float]) -> Iterator[tuple[float, list[float]]]:
    """(probability, picks that lead to it) of each draft that begins with these picks."""
    if len(scene.draft(picks).tokens) <= len(picks):
        yield 1.0, picks
        return
    for low, high in pieces(lambda u: int(scene.draft([*picks, u]).tokens[len(picks)])):
        for chance, path in drafts(scene, [*picks, (low + high) / 2]):
            yield (high - low) * chance, path


def pieces(pick: Callable[[float], int]) -> Iterator[tuple[float, float]]:
    """The parts of [0, 1) in which the same token is picked."""
    grid = [i / _PIECES for i in range(_PIECES)] + [_BELOW_ONE]
    edges = [edge for low, high in pairwise(grid) for edge in _edges(pick, low, pick(low), high, pick(high))]
    yield from zip([0.0, *edges], [*edges, 1.0], strict=True)


def _edges(pick: Callable[[float], int], low: float, first: int, high: float, last: int) -> Iterator[float]:
    middle = (low + high) / 2
    if first == last:
        return
    if high - low < 1e-15 or middle in (low, high):
        yield high
        return
    between = pick(middle)
    yield from _edges(pick, low, first, middle, between)
    yield from _edges(pick, middle, between, high, last)


def row(model: TableModel, context: tuple[int, ...], sampling: SamplingParams) -> Tensor:
    """Warped probabilities behind a context, [V]."""
    model.rollback(0)
    return warp(model.score(torch.tensor(context), last=1), sampling)[0]


def choices(weights: Tensor) -> Iterator[tuple[int, float, float]]:
    """(token, probability, a uniform number that draws it) for each token that can be drawn."""
    probs = weights / weights.sum()
    ends = probs.cumsum(0)
    for token in range(len(probs)):
        if probs[token] > 0:
            yield token, float(probs[token]), float(ends[token] - probs[token] / 2)


def completed(
    law: Law, target: TableModel, prompt: tuple[int, ...], length: int, sampling: SamplingParams
) -> Law:
    """The law with every outcome continued by the target to a fixed length."""
    full: Law = defaultdict(float)
    for tokens, chance in law.items():
        for rest, probability in continuations(target, prompt + tokens, length - len(tokens), sampling):
            full[tokens + rest] += chance * probability
    return full


def continuations(
    target: TableModel, context: tuple[int, ...], length: int, sampling: SamplingParams
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every continuation of a context that the target can write, with its probability."""
    if length == 0:
        yield (), 1.0
        return
    for token, probability, _ in choices(row(target, context, sampling)):
        for rest, chance in continuations(target, (*context, token), length - 1, sampling):
            yield (token, *rest), probability * chance

"""The law of several loops by enumeration, whatever decides how many tokens each of them drafts.

Like ``enumeration``, but nothing is assumed of a draft's length: every number that a draft could use is
scripted, and how many tokens came of it is read off the production loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from drafter_law import Law, choices, continuations, row
from torch import Tensor

from spsbench.decode import algorithms, rejection
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import Drafter
from spsbench.decode.table import TableModel
from spsbench.records import SamplingParams

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Enumerated:
    """A sampler whose every path is walked; ``drafter`` builds a new one for each walk."""

    target: TableModel
    draft: TableModel
    drafter: Callable[[TableModel, SamplingParams], Drafter]
    prompt: Ids
    k: int
    sampling: SamplingParams

    def error(self, loops: int) -> float:
        """Largest difference between the law of so many loops and the target's."""
        length = loops * (self.k + 1)
        ours: Law = defaultdict(float)
        for tokens, chance in self.law(loops).items():
            missing = length - len(tokens)
            for rest, probability in continuations(self.target, self.prompt + tokens, missing, self.sampling):
                ours[tokens + rest] += chance * probability
        theirs = dict(continuations(self.target, self.prompt, length, self.sampling))
        return max(abs(ours.get(x, 0.0) - theirs.get(x, 0.0)) for x in ours.keys() | theirs.keys())

    def law(self, loops: int, past: Sequence[Tensor] = (), text: Ids = ()) -> Law:
        """Probability of each text of so many more loops behind those with the numbers ``past``."""
        if loops == 0:
            return {(): 1.0}
        law: Law = defaultdict(float)
        for u, reach in self.paths(past, text):
            new = tuple(self.decoded([*past, u]).tokens)
            for rest, chance in self.law(loops - 1, [*past, u], text + new).items():
                law[new + rest] += reach * chance
        return law

    def paths(self, past: Sequence[Tensor], text: Ids) -> Iterator[tuple[Tensor, float]]:
        """Numbers [2K+1] that lead through each path of one loop, and the path's probability."""
        for tokens, (chance, picks) in self.drafts(past, text).items():
            context, n = self.prompt + text, len(tokens)
            q = [row(self.target, context + tokens[:i], self.sampling) for i in range(n + 1)]
            p = [row(self.draft, context + tokens[:i], self.sampling) for i in range(n)]
            accept = [float(rejection.acceptance_probability(q[i][x], p[i][x])) for i, x in enumerate(tokens)]
            for stand in range(n + 1):
                some, chance_of_some = _tests(accept, stand)
                weights = rejection.residual(q[stand], p[stand]) if stand < n else q[n]
                for _, probability, pick in choices(weights):
                    numbers = [*picks, *[0.5] * (self.k - n), *some, pick]
                    if (reach := chance * chance_of_some * probability) > 0:
                        yield torch.tensor(numbers, dtype=torch.float64), reach

    def drafts(self, past: Sequence[Tensor], text: Ids) -> dict[Ids, tuple[float, list[float]]]:
        """Each draft that the next loop may make, its probability and picks [K] that lead there."""
        found: dict[Ids, tuple[float, list[float]]] = {}
        for path, chance, picks in drafts(self.draft, self.prompt + text, self.k, self.sampling):
            numbers = torch.tensor([*picks, *[0.5] * (self.k + 1)], dtype=torch.float64)
            draft = self.decoded([*past, numbers]).draft
            assert draft is not None
            tokens = tuple(draft.tokens.tolist())
            assert tokens == path[: len(tokens)]
            found[tokens] = found.get(tokens, (0.0, []))[0] + chance, picks
        return found

    def decoded(self, numbers: Sequence[Tensor]) -> algorithms.DecodedLoop:
        """The last of the production loops under scripted numbers."""
        self.target.rollback(0)
        if self.prompt[:-1]:
            self.target.score(torch.tensor(self.prompt[:-1]), last=1)
        drafter, script = self.drafter(self.draft, self.sampling), iter(numbers)
        drafter.begin(self.prompt)
        watch = Stopwatch(FakeClock())
        loops = algorithms.sps(
            self.target, drafter, self.prompt, self.k, self.sampling, lambda n: next(script), watch
        )
        *_, last = islice(loops, len(numbers))
        return last


def _tests(accept: Sequence[float], stand: int) -> tuple[list[float], float]:
    """Test numbers with which exactly so many tokens stand, and the probability of that."""
    numbers = [a / 2 for a in accept[:stand]] + [(1 + a) / 2 for a in accept[stand : stand + 1]]
    chance = torch.tensor(accept[:stand], dtype=torch.float64).prod().item()
    chance *= 1 - accept[stand] if stand < len(accept) else 1.0
    return [*numbers, *[0.5] * (len(accept) - len(numbers))], chance


def drafts(
    draft: TableModel, prompt: Ids, k: int, sampling: SamplingParams
) -> Iterator[tuple[Ids, float, list[float]]]:
    """Each draft of K tokens, its probability and the uniform numbers that pick it."""
    if k == 0:
        yield (), 1.0, []
        return
    for path, chance, picks in drafts(draft, prompt, k - 1, sampling):
        for token, probability, pick in choices(row(draft, prompt + path, sampling)):
            yield (*path, token), chance * probability, [*picks, pick]

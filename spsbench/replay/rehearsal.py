"""The time of a loop of each cell on this machine: a few real loops, in turns, after prefixes of the
texts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from spsbench.engines.base import Engine
from spsbench.law.text_loops import Floats
from spsbench.records import Generation, Request, SamplingParams
from spsbench.replay.texts import TargetText

Cell = TypeVar("Cell", bound=Hashable)

_LOOPS = 14
"""Of a cell in a round: few, so that the rounds are many and no cell has its own moment."""
_LEAST_TOKENS = 42
"""A sequence in a round has at least so many: ArS, whose time stands in every speedup, has a token a loop."""
COLD = 4
"""The first loops of a sequence, which find the caches full of what came before, are apart."""
LEAST_ROUNDS = 6


@dataclass(frozen=True)
class LoopTimes:
    """Times of one cell's loops.

    Attributes:
        rounds: [m] in which round each was run.
        places: [m] how many loops of its sequence came before it.
        contexts: [m] tokens before it.
        seconds: [m] what it took.
        drafting: [m] what of it was drafting.
        drafted: [m] tokens that it drafted.
    """

    rounds: Floats
    places: Floats
    contexts: Floats
    seconds: Floats
    drafting: Floats
    drafted: Floats

    def line(self, counts: Floats) -> tuple[float, float]:
        """(seconds of a loop at context 0, seconds a token of context more), by least squares, of warm ones.

        Args:
            counts: [rounds] how often each round counts.
        """
        weights = counts[self.rounds.astype(np.int64)] * (self.places >= COLD)
        total = weights.sum()
        context = float(weights @ self.contexts / total)
        mean = float(weights @ self.seconds / total)
        centred = self.contexts - context
        spread = float(weights @ centred**2)
        slope = float(weights @ (centred * self.seconds)) / spread if spread > 0 else 0.0
        slope = max(slope, 0.0)  # more to attend to is never faster: a falling line is noise
        return mean - slope * context, slope

    @property
    def count(self) -> int:
        """Of rounds."""
        return int(self.rounds.max()) + 1

    def cold(self, counts: Floats, line: tuple[float, float]) -> Floats:
        """[COLD] seconds that the first loops of a sequence take beyond a line."""
        at_zero, slope = line
        beyond = self.seconds - at_zero - slope * self.contexts
        weights = counts[self.rounds.astype(np.int64)]
        of_place = [weights * (self.places == place) for place in range(COLD)]
        return np.array([float(own @ beyond) / own.sum() if own.sum() else 0.0 for own in of_place])


def rehearse(
    engines: Mapping[Cell, Engine],
    most_tokens: Mapping[Cell, int],
    texts: Sequence[TargetText],
    sampling: SamplingParams,
    room: Callable[[Sequence[int]], int],
    budget_s: float,
    between: Callable[[Request, Generation], None] = lambda request, generation: None,
    seed: int = 0,
    least_rounds: int = LEAST_ROUNDS,
) -> dict[Cell, LoopTimes]:
    """Run some loops of every cell, in turns and in an order reshuffled each round.

    Args:
        budget_s: seconds after which no further round begins, if ``least_rounds`` are done.
    """
    shuffler, order = random.Random(seed), list(engines)
    found: dict[Cell, list[tuple[float, ...]]] = {name: [] for name in engines}
    started, number = time.perf_counter(), -1  # the first round is warm-up
    while number < least_rounds or time.perf_counter() - started < budget_s:
        text = shuffler.choice(texts)
        prompt = (*text.prompt, *text.tokens[: shuffler.randrange(len(text.tokens))])
        shuffler.shuffle(order)
        for name in order:
            asked = max(_LOOPS * most_tokens[name], _LEAST_TOKENS)
            limit = max(1, min(asked, room(prompt) - most_tokens[name]))
            request = Request(prompt, limit, (), sampling, seed=seed + number, fixed_length=True)
            generation = engines[name].generate(request)
            context = len(prompt)
            for place, loop in enumerate(generation.loops or ()):
                if number >= 0:
                    drafting = loop.draft_s or 0.0
                    found[name].append((number, place, context, loop.loop_s, drafting, loop.drafted))
                context += loop.emitted
            between(request, generation)
        number += 1
    return {name: LoopTimes(*np.array(loops).T) for name, loops in found.items()}

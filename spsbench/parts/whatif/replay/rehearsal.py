"""Loops of every cell, run here after prefixes of the texts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from spsbench.base import EAGER, FIXED, Arm, Generation, Request, SamplingParams, Spec
from spsbench.engines import Engine, teacher_force
from spsbench.parts.whatif.bench.turns import budgeted_rounds
from spsbench.parts.whatif.messages.replay import LOOPS_RUN_HERE
from spsbench.parts.whatif.replay.cells import Cell
from spsbench.parts.whatif.replay.reading import Replayed
from spsbench.parts.whatif.replay.texts import TargetText, Written
from spsbench.parts.whatif.replay.times import LEAST_ROUNDS, LoopTimes
from spsbench.runner import EngineFactory

Arms = TypeVar("Arms", bound=Hashable)

_LOOPS = 14
"""Of a cell in a round: few, so that the rounds are many and no cell has its own moment."""
_LEAST_TOKENS = 42
"""A sequence in a round has at least so many: ArS, whose time stands in every speedup, has a token a loop."""


def rehearse(
    engines: Mapping[Arms, Engine],
    most_tokens: Mapping[Arms, int],
    texts: Sequence[TargetText],
    sampling: SamplingParams,
    room: Callable[[Sequence[int]], int],
    budget_s: float,
    between: Callable[[Request, Generation], None] = lambda request, generation: None,
    seed: int = 0,
    least_rounds: int = LEAST_ROUNDS,
) -> dict[Arms, LoopTimes]:
    """Time loops of every cell after prefixes of the texts, in turns, reshuffled each round.

    Args:
        budget_s: seconds after which no further round begins, if ``least_rounds`` are done.
    """
    shuffler = random.Random(seed)
    order = list(engines)
    loops_of: dict[Arms, list[tuple[float, ...]]] = {name: [] for name in engines}
    for number in budgeted_rounds(budget_s, least_rounds, math.inf):
        text = shuffler.choice(texts)
        prompt = (*text.prompt, *text.tokens[: shuffler.randrange(len(text.tokens))])
        shuffler.shuffle(order)
        for name in order:
            most_new = max(_LOOPS * most_tokens[name], _LEAST_TOKENS)
            limit = max(1, min(most_new, room(prompt) - most_tokens[name]))
            request = Request(prompt, limit, (), sampling, seed=seed + number, fixed_length=True)
            generation = engines[name].generate(request)
            context = len(prompt)
            for place, loop in enumerate(generation.loops or ()):
                if number >= 0:
                    drafting = loop.draft_s or 0.0
                    rolling = loop.rollback_s or 0.0
                    loops_of[name].append(
                        (number, place, context, loop.loop_s, drafting, loop.drafted, rolling)
                    )
                context += loop.emitted
            between(request, generation)
    return {name: LoopTimes(*np.array(loops).T) for name, loops in loops_of.items()}


@dataclass(frozen=True)
class Rehearsal:
    """Times of loops that were run, by cell; those of ArS by None."""

    times: Mapping[Cell | None, LoopTimes]

    @property
    def origin(self) -> str:
        return LOOPS_RUN_HERE

    def ars(self) -> LoopTimes:
        return self.times[None]

    def loops(self, cell: Cell, replay: Replayed) -> LoopTimes:
        return self.times[cell]

    @property
    def under_policies(self) -> dict[tuple[Spec, Spec], LoopTimes]:
        """By drafter and policy."""
        fixed = Spec(FIXED)
        of_cells = [(cell, times) for cell, times in self.times.items() if cell is not None]
        return {(cell.drafter, cell.policy): times for cell, times in of_cells if cell.policy != fixed}


def rehearsed(written: Written, cells: Sequence[Cell], budget_s: float) -> Rehearsal:
    """Time loops of cells over these texts, ArS among them."""
    pairs = {id(cell.sought.pair): cell.sought.pair for cell in cells}
    models = [model for pair in pairs.values() for model in (pair.target, pair.draft)]
    first = next(iter(pairs.values()))
    draft = None if first.is_one else first.draft
    corpus = tuple({text.prompt: None for text in written.texts})
    window = min(model.context_window for model in models)
    factories = {number: EngineFactory(pair, window, corpus=corpus) for number, pair in pairs.items()}
    name, sampling = written.sampling_name, written.sampling
    engines: dict[Cell | None, Engine] = {
        None: next(iter(factories.values())).build(Arm("ars", 0, EAGER, name, sampling))
    }
    for cell in cells:
        arm = Arm("sps", cell.k, EAGER, name, sampling, cell.drafter, Spec(cell.rule), cell.policy)
        engines[cell] = factories[id(cell.sought.pair)].build(arm)
    most = {cell: 1 if cell is None else cell.k + 1 for cell in engines}

    def room(prompt: Sequence[int]) -> int:
        return min(model.room_behind(prompt) for model in models)

    def read(request: Request, generation: Generation) -> None:
        teacher_force(first.target, draft, request.prompt_ids, generation.tokens, request.sampling)

    seed = written.settings.seed
    return Rehearsal(
        rehearse(engines, most, written.texts, sampling, room, budget_s, read, seed, LEAST_ROUNDS)
    )

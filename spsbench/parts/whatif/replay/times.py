"""The time of a loop as it was measured, and what can be asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from spsbench.base import Bools, Floats
from spsbench.parts.whatif.replay.cells import Cell
from spsbench.parts.whatif.replay.reading import Replayed
from spsbench.stats import RESAMPLES, SEED

COLD = 4
"""The first loops of a sequence, which find the caches full of what came before, are apart."""
LEAST_ROUNDS = 6

PROMPTS, ROUNDS = 1, 2
"""Streams of resampling, which do not depend on each other."""


def resampled(size: int, stream: int) -> Floats:
    """[1 + RESAMPLES, size] how often each of ``size`` items counts: once, then drawn with replacement."""
    drawn = np.random.default_rng([SEED, stream]).integers(0, size, (RESAMPLES, size))
    counts = np.zeros((RESAMPLES, size))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    return np.concatenate([np.ones((1, size)), counts])


@dataclass(frozen=True)
class LoopCosts:
    """Seconds of loops by how many tokens they draft [D], as measured and in resamples of the rounds.

    Attributes:
        at_zero, slope: [1 + RESAMPLES, D] of the line in the context's length.
        cold: [1 + RESAMPLES, COLD, D] what the first loops of a sequence take beyond it.
    """

    at_zero: Floats
    slope: Floats
    cold: Floats

    def at(self, contexts: Floats) -> Floats:
        """[n, D] seconds, as measured, of loops after contexts [n] of so many tokens."""
        seconds: Floats = self.at_zero[0] + contexts[:, None] * self.slope[0]
        return seconds

    def beyond(self, times: LoopTimes) -> Floats:
        """[1 + RESAMPLES] seconds that a policy's loop takes beyond one of a fixed K that drafts as many."""
        drafted = times.drafted.astype(np.int64)
        counts = resampled(times.count, ROUNDS)
        weights = counts[:, times.rounds.astype(np.int64)] * (times.places >= COLD)
        expected = self.at_zero[:, drafted] + self.slope[:, drafted] * times.contexts
        seconds: Floats = (weights * (times.seconds - expected)).sum(1) / weights.sum(1)
        return seconds


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
        rolling: [m] what of it was putting running states back; a number where it is the same of all.
    """

    rounds: Floats
    places: Floats
    contexts: Floats
    seconds: Floats
    drafting: Floats
    drafted: Floats
    rolling: Floats | float = 0.0

    @classmethod
    def one_a_round(
        cls,
        context: float,
        verifying: Floats,
        drafting: Floats,
        drafted: float,
        rolling: Floats | float = 0.0,
    ) -> LoopTimes:
        """Return the times of one loop a round, none of them cold; ``verifying`` has ``rolling`` in it."""
        same = np.ones(len(verifying))
        rounds = np.arange(len(verifying), dtype=np.float64)
        seconds = verifying + drafting
        return cls(rounds, COLD * same, context * same, seconds, drafting, drafted * same, rolling)

    @property
    def states_kept(self) -> LoopTimes:
        """The same loops of an engine that takes a state which it kept, and reads no token again."""
        return replace(self, seconds=self.seconds - self.rolling, rolling=0.0)

    @property
    def count(self) -> int:
        return int(self.rounds.max()) + 1

    @cached_property
    def costs(self) -> LoopCosts:
        """The costs of a loop according to these times, with D = 1."""
        return self.fitted(resampled(self.count, ROUNDS))

    def fitted(self, counts: Floats) -> LoopCosts:
        """Fit a line in the context to the warm loops by least squares, and the extra time of cold ones.

        Args:
            counts: [m, rounds] how often each round counts.
        """
        rounds = self.rounds.astype(np.int64)
        centre = float(self.contexts.mean())
        x, y = self.contexts - centre, self.seconds

        def sums(of: Bools, values: Floats) -> Floats:
            return np.asarray(counts @ np.bincount(rounds, of * values, counts.shape[1]))

        warm = self.places >= COLD
        total = sums(warm, np.ones_like(x))
        mean_x, mean_y = sums(warm, x) / total, sums(warm, y) / total
        spread = sums(warm, x * x) / total - mean_x**2
        level = spread < 1e-6  # one context alone, in tokens
        slope = (sums(warm, x * y) / total - mean_x * mean_y) / np.where(level, 1.0, spread)
        # More to attend to is never faster, and no loop takes less than nothing: such lines are noise.
        steepest = mean_y / np.maximum(mean_x + centre, 1.0)
        slope = np.where(level, 0.0, np.clip(slope, 0.0, steepest))
        at_zero = mean_y - slope * (mean_x + centre)
        cold = np.zeros((len(counts), COLD))
        for place in range(COLD):
            here = self.places == place
            count = sums(here, np.ones_like(x))
            beyond = sums(here, y) - at_zero * count - slope * sums(here, self.contexts)
            cold[:, place] = beyond / np.maximum(count, 1.0)
        return LoopCosts(at_zero[:, None], slope[:, None], cold[:, :, None])


def loop_costs(times: Sequence[LoopTimes]) -> LoopCosts:
    """Return the costs of ArS and of fixed K from 1 on, in the same rounds.

    They are of loops that draft 0 to K tokens.
    """
    costs = [(time.costs.at_zero, time.costs.slope, time.costs.cold) for time in times]
    return LoopCosts(*(np.concatenate(parts, axis=-1) for parts in zip(*costs, strict=True)))


class TimeSource(Protocol):
    """What times are taken from: loops that were run, parts of loops, or forwards on another machine."""

    @property
    def origin(self) -> object:
        """Where they were measured, and how: a message."""

    def ars(self) -> LoopTimes:
        """Of loops that draft nothing."""

    def loops(self, cell: Cell, replay: Replayed) -> LoopTimes:
        """Of a cell's loops, which draft as they do over the texts."""

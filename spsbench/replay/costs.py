"""The time of a loop by how many tokens it drafts: the times of fixed K, combined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.law.text_loops import DraftedLoops, Floats
from spsbench.records import Interval
from spsbench.replay.rehearsal import COLD, LoopTimes
from spsbench.replay.texts import TargetText
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED, pooled_ratio

_PROMPTS, _ROUNDS = 1, 2
"""Streams of resampling, which do not depend on each other."""

_NOTHING: Floats = np.zeros(1)


@dataclass(frozen=True)
class DraftedWork:
    """What decoding the texts takes, by prompt and by how many tokens a loop drafts.

    Attributes:
        tokens: [prompts] of its texts.
        loops: [prompts, K+1] expected loops that draft 0 to K tokens.
        contexts: [prompts, K+1] tokens before such a loop, summed over them.
        first: [prompts, COLD, K+1] expected first, second... loops of a text that draft so many.
    """

    tokens: Floats
    loops: Floats
    contexts: Floats
    first: Floats

    def part(self, prompts: Sequence[int]) -> DraftedWork:
        """Of some of the prompts, by their numbers."""
        own = list(prompts)
        return DraftedWork(self.tokens[own], self.loops[own], self.contexts[own], self.first[own])

    @property
    def tokens_per_loop(self) -> Interval:
        """With its interval over prompts."""
        return pooled_ratio(self.tokens, self.loops.sum(1))

    @property
    def drafted_per_loop(self) -> Interval:
        """With its interval over prompts."""
        return pooled_ratio(self.loops @ np.arange(self.loops.shape[1]), self.loops.sum(1))


def drafted_work(texts: Sequence[TargetText], drafted: Iterable[DraftedLoops], k: int) -> DraftedWork:
    """Of loops over texts."""
    names = list(dict.fromkeys(text.name for text in texts))
    tokens, loops, contexts = np.zeros(len(names)), *np.zeros((2, len(names), k + 1))
    first = np.zeros((len(names), COLD, k + 1))
    for text, own in zip(texts, drafted, strict=True):
        prompt, width = names.index(text.name), own.loops.shape[1]
        tokens[prompt] += len(text.tokens)
        loops[prompt, :width] += own.loops.sum(0)
        contexts[prompt, :width] += (len(text.prompt) + np.arange(len(text.tokens))) @ own.loops
        first[prompt, :, :width] += own.first
    return DraftedWork(tokens, loops, contexts, first)


@dataclass(frozen=True)
class LoopCosts:
    """Seconds of loops by how many tokens they draft, as measured and in resamples of the rounds.

    Attributes:
        at_zero, slope: [1 + RESAMPLES, K+1] of the line in the context's length.
        cold: [1 + RESAMPLES, K+1, COLD] what the first loops of a sequence take beyond it.
    """

    at_zero: Floats
    slope: Floats
    cold: Floats

    def at(self, contexts: Floats) -> Floats:
        """[n, K+1] seconds, as measured, of loops after contexts [n] of so many tokens."""
        found: Floats = self.at_zero[0] + contexts[:, None] * self.slope[0]
        return found

    def beyond(self, times: LoopTimes) -> Floats:
        """[1 + RESAMPLES] seconds that a policy's loop takes beyond one of a fixed K that drafts as many."""
        drafted = times.drafted.astype(np.int64)
        counts = _resampled(times.count, _ROUNDS)
        weights = counts[:, times.rounds.astype(np.int64)] * (times.places >= COLD)
        expected = self.at_zero[:, drafted] + self.slope[:, drafted] * times.contexts
        found: Floats = (weights * (times.seconds - expected)).sum(1) / weights.sum(1)
        return found

    def per_token(self, work: DraftedWork, beyond: Floats = _NOTHING) -> Floats:
        """[1 + RESAMPLES] seconds a token: the estimate, then prompts and rounds resampled together."""
        return self._per_token(work, beyond, _resampled(len(work.tokens), _PROMPTS))

    def estimate(self, work: DraftedWork, beyond: Floats = _NOTHING) -> float:
        """The first of ``per_token``."""
        first = LoopCosts(self.at_zero[:1], self.slope[:1], self.cold[:1])
        return float(first._per_token(work, beyond[:1], np.ones((1, len(work.tokens))))[0])

    def _per_token(self, work: DraftedWork, beyond: Floats, counts: Floats) -> Floats:
        seconds = (self.at_zero * (counts @ work.loops)).sum(1)
        seconds += (self.slope * (counts @ work.contexts)).sum(1)
        seconds += np.einsum("bkc,bp,pck->b", self.cold, counts, work.first, optimize=True)
        found: Floats = (seconds + beyond * (counts @ work.loops.sum(1))) / (counts @ work.tokens)
        return found


def loop_costs(times: Sequence[LoopTimes]) -> LoopCosts:
    """Of ArS, and of fixed K from 1 on, in the same rounds."""
    lines, cold = [], []
    for counts in _resampled(times[0].count, _ROUNDS):
        found = [each.line(counts) for each in times]
        lines.append(found)
        cold.append([each.cold(counts, line) for each, line in zip(times, found, strict=True)])
    at_zero, slope = np.moveaxis(np.array(lines), 2, 0)
    return LoopCosts(at_zero, slope, np.array(cold))


def interval_of(values: Floats) -> Interval:
    """Of an estimate and what resamples gave in its place."""
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values[0]), float(low), float(high))


def _resampled(size: int, stream: int) -> Floats:
    """[1 + RESAMPLES, size] how often each of some counts: once, then drawn with replacement."""
    drawn = np.random.default_rng([SEED, stream]).integers(0, size, (RESAMPLES, size))
    counts = np.zeros((RESAMPLES, size))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    return np.concatenate([np.ones((1, size)), counts])

"""From loops over texts and the times of loops here to milliseconds a token, and to a speedup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.decode.replay import Floats, TextLoops
from spsbench.records import Interval
from spsbench.replay.rehearsal import COLD, LoopTimes
from spsbench.replay.texts import TargetText
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED


@dataclass(frozen=True)
class Work:
    """What decoding the texts takes, by prompt.

    Attributes:
        tokens: [prompts] of its texts.
        loops: [prompts] expected.
        contexts: [prompts] tokens before a loop, summed over its loops.
        begun: [prompts, COLD] expected first, second... loops: how many texts have so many.
    """

    tokens: Floats
    loops: Floats
    contexts: Floats
    begun: Floats

    def part(self, prompts: Sequence[int]) -> Work:
        """Of some of the prompts, by their numbers."""
        return Work(self.tokens[prompts], self.loops[prompts], self.contexts[prompts], self.begun[prompts])

    def per_token(self, counts: Floats, line: tuple[float, float], cold: Floats) -> float:
        """Seconds a token, if each prompt counts so often and a loop takes what the line says."""
        at_zero, slope = line
        seconds = at_zero * (counts @ self.loops) + slope * (counts @ self.contexts)
        return float((seconds + counts @ self.begun @ cold) / (counts @ self.tokens))


def work_of(texts: Sequence[TargetText], laws: Iterable[TextLoops] | None = None) -> Work:
    """Of loops over texts; of ArS, a loop a token, without laws."""
    names = list(dict.fromkeys(text.name for text in texts))
    sums, firsts = np.zeros((3, len(names))), np.zeros((len(names), COLD))
    given: list[TextLoops | None] = [None] * len(texts) if laws is None else list(laws)
    for text, law in zip(texts, given, strict=True):
        n, prompt = len(text.tokens), names.index(text.name)
        starts = np.ones(n) if law is None else law.starts
        before = len(text.prompt) + np.arange(n)
        sums[:, prompt] += np.array([n, starts.sum(), starts @ before])
        firsts[prompt] += np.arange(COLD) < n if law is None else law.begun(COLD)
    return Work(sums[0], sums[1], sums[2], firsts)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a cell.

    Attributes:
        ms_per_token: with its interval.
        speedup: over ArS, likewise; prompts and rounds of timing are resampled together.
    """

    ms_per_token: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Timed:
    """Work with the times of its loops.

    Attributes:
        work: of some prompts.
        times: of some rounds.
    """

    work: Work
    times: LoopTimes

    def part(self, prompts: Sequence[int]) -> Timed:
        """Of some of the prompts, by their numbers."""
        return Timed(self.work.part(prompts), self.times)

    def seconds(self, prompts: Floats, rounds: Floats) -> float:
        """A token's, if prompts and rounds count so often."""
        line = self.times.line(rounds)
        return self.work.per_token(prompts, line, self.times.cold(rounds, line))

    def mean_s(self) -> float:
        """Seconds a token, every prompt and round counted once."""
        return self.seconds(np.ones(len(self.work.tokens)), np.ones(self.times.count))


def predict(own: Timed, ars: Timed) -> Predicted:
    """Predict one cell, from the same prompts and rounds as ArS."""
    ours, theirs = _resampled([own, ars])
    return Predicted(_interval(1e3 * ours), _interval(theirs / ours))


def faster(slow: Timed, fast: Timed) -> Interval:
    """How many times one's time per token the other's is, of the same prompts and rounds."""
    slower, quicker = _resampled([slow, fast])
    return _interval(slower / quicker)


def _resampled(of: Sequence[Timed]) -> Floats:
    """[len(of), 1 + RESAMPLES] seconds a token: the estimate, then prompts and rounds resampled together."""
    sizes = len(of[0].work.tokens), of[0].times.count
    rng = np.random.default_rng(SEED)
    drawn = [[timed.mean_s() for timed in of]]
    for _ in range(RESAMPLES):
        counts = [np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64) for n in sizes]
        drawn.append([timed.seconds(*counts) for timed in of])
    return np.array(drawn).T


def _interval(values: Floats) -> Interval:
    """Of an estimate and what resamples gave in its place."""
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values[0]), float(low), float(high))

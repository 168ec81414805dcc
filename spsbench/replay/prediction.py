"""From loops over texts and the times of loops here to milliseconds a token, and to a speedup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spsbench.law.text_loops import Floats, TextLoops
from spsbench.predict.whatif import alpha_needed, c_allowed
from spsbench.records import Interval
from spsbench.replay.costs import interval_of
from spsbench.replay.rehearsal import COLD, LoopTimes
from spsbench.replay.texts import TargetText
from spsbench.stats.bootstrap import RESAMPLES, SEED


@dataclass(frozen=True)
class TextWork:
    """What decoding one text takes.

    Attributes:
        counts: [n+1] the distribution of its loops.
    """

    prompt: int
    counts: Floats
    context: float


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
    texts: tuple[TextWork, ...]

    def part(self, prompts: Sequence[int]) -> Work:
        """Of some of the prompts, by their numbers."""
        places = {prompt: place for place, prompt in enumerate(prompts)}
        texts = tuple(
            replace(text, prompt=places[text.prompt]) for text in self.texts if text.prompt in places
        )
        own = np.asarray(prompts)
        return Work(self.tokens[own], self.loops[own], self.contexts[own], self.begun[own], texts)

    def per_token(self, counts: Floats, line: tuple[float, float], cold: Floats) -> float:
        """Seconds a token, if each prompt counts so often and a loop takes what the line says."""
        at_zero, slope = line
        seconds = at_zero * (counts @ self.loops) + slope * (counts @ self.contexts)
        return float((seconds + counts @ self.begun @ cold) / (counts @ self.tokens))

    def quantile_s(self, share: float, line: tuple[float, float], cold: Floats) -> float:
        """Seconds that so large a share of the texts stays below, if a loop takes what the line says."""
        at_zero, slope = line
        extra = np.concatenate([[0.0], np.cumsum(cold)])
        seconds = [
            np.arange(len(text.counts)) * (at_zero + slope * text.context)
            + extra[np.minimum(np.arange(len(text.counts)), COLD)]
            for text in self.texts
        ]
        every, weights = np.concatenate(seconds), np.concatenate([text.counts for text in self.texts])
        order = np.argsort(every)
        below = np.cumsum(weights[order]) / weights.sum()
        place = int(np.searchsorted(below, share - 1e-12))
        return float(every[order][min(place, len(order) - 1)])


def work_of(texts: Sequence[TargetText], laws: Iterable[TextLoops] | None = None) -> Work:
    """Of loops over texts; of ArS, a loop a token, without laws."""
    names = list(dict.fromkeys(text.name for text in texts))
    sums, firsts = np.zeros((3, len(names))), np.zeros((len(names), COLD))
    given: list[TextLoops | None] = [None] * len(texts) if laws is None else list(laws)
    each: list[TextWork] = []
    for text, law in zip(texts, given, strict=True):
        n, prompt = len(text.tokens), names.index(text.name)
        starts = np.ones(n) if law is None else law.starts
        before = len(text.prompt) + np.arange(n)
        sums[:, prompt] += np.array([n, starts.sum(), starts @ before])
        firsts[prompt] += np.arange(COLD) < n if law is None else law.begun(COLD)
        counts = np.eye(n + 1)[n] if law is None else law.counts
        each.append(TextWork(prompt, counts, float(starts @ before / starts.sum())))
    return Work(sums[0], sums[1], sums[2], firsts, tuple(each))


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a cell."""

    ms_per_token: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Timed:
    """Work with the times of its loops."""

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

    def quantile_s(self, share: float) -> float:
        """Seconds that so large a share of the sequences stays below."""
        rounds = np.ones(self.times.count)
        line = self.times.line(rounds)
        return self.work.quantile_s(share, line, self.times.cold(rounds, line))


@dataclass(frozen=True, slots=True)
class Even:
    """Where a cell would be as fast as ArS, all else being as it is."""

    cost: float
    alpha: float | None
    c: float
    c_allowed: float | None


def break_even(own: Timed, ars: Timed, k: int) -> Even:
    """Of a cell with lookahead K."""
    work, step = own.work, ars.mean_s()
    tokens = float(work.tokens.sum() / work.loops.sum())
    cost = own.mean_s() * tokens / step
    c = float(own.times.drafting.mean()) / k / step
    return Even(cost, alpha_needed(k, cost), c, c_allowed(c, k, tokens, cost))


def predict(own: Timed, ars: Timed) -> Predicted:
    """Predict one cell, from the same prompts and rounds as ArS."""
    ours, theirs = _resampled([own, ars])
    return Predicted(interval_of(1e3 * ours), interval_of(theirs / ours))


def faster(slow: Timed, fast: Timed) -> Interval:
    """How many times one's time per token the other's is, of the same prompts and rounds."""
    slower, quicker = _resampled([slow, fast])
    return interval_of(slower / quicker)


def _resampled(of: Sequence[Timed]) -> Floats:
    """[len(of), 1 + RESAMPLES] seconds a token: the estimate, then prompts and rounds resampled together."""
    sizes = len(of[0].work.tokens), of[0].times.count
    rng = np.random.default_rng(SEED)
    drawn = [[timed.mean_s() for timed in of]]
    for _ in range(RESAMPLES):
        counts = [np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64) for n in sizes]
        drawn.append([timed.seconds(*counts) for timed in of])
    return np.array(drawn).T

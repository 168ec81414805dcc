"""Totals of a drafter and a K over all texts: tokens per loop, and the loops of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spsbench.law.text_loops import DraftedLoops, Floats, TextLoops
from spsbench.predict.whatif import alpha_needed, c_allowed
from spsbench.records import Interval, Spec
from spsbench.replay.texts import TargetText
from spsbench.replay.times import COLD, LoopTimes
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED, pooled_ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """One drafter with one K, predicted.

    Attributes:
        r_prime: as a share of K+1 (Chen et al. 2023).
        emitted: [K+1] the share of loops that emit 1 to K+1 tokens.
    """

    drafter: Spec
    draft: str
    k: int
    tokens_per_loop: Interval
    emitted: Floats
    loops: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Of the drafter, with its draft model where several are compared."""
        return f"{self.drafter} of {self.draft}" if self.draft else str(self.drafter)

    @property
    def r_prime(self) -> float:
        """Tokens per loop over K+1."""
        return self.tokens_per_loop.estimate / (self.k + 1)


QUANTILES = (0.5, 0.9, 0.99)


def cell(drafter: Spec, draft: str, k: int, texts: Sequence[TargetText], laws: Sequence[TextLoops]) -> Cell:
    """Predict one cell."""
    names = list(dict.fromkeys(text.name for text in texts))
    tokens, loops = np.zeros(len(names)), np.zeros(len(names))
    emitted, longest = np.zeros(k + 1), max(len(text.tokens) for text in texts)
    counts = np.zeros(longest + 1)
    for text, law in zip(texts, laws, strict=True):
        prompt = names.index(text.name)
        tokens[prompt] += len(text.tokens)
        loops[prompt] += law.loops
        emitted += law.emitted()
        counts[: len(text.tokens) + 1] += law.counts
    return Cell(drafter, draft, k, pooled_ratio(tokens, loops), emitted / emitted.sum(), _quantiles(counts))


def _quantiles(counts: Floats) -> tuple[int, int, int]:
    below = np.cumsum(counts) / counts.sum()
    p50, p90, p99 = (int(np.searchsorted(below, share - 1e-12)) for share in QUANTILES)
    return p50, p90, p99


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
    ours, theirs = _drawn([own, ars])
    return Predicted(interval_of(1e3 * ours), interval_of(theirs / ours))


def faster(slow: Timed, fast: Timed) -> Interval:
    """How many times one's time per token the other's is, of the same prompts and rounds."""
    slower, quicker = _drawn([slow, fast])
    return interval_of(slower / quicker)


def _drawn(of: Sequence[Timed]) -> Floats:
    """[len(of), 1 + RESAMPLES] seconds a token: the estimate, then prompts and rounds resampled together."""
    sizes = len(of[0].work.tokens), of[0].times.count
    rng = np.random.default_rng(SEED)
    drawn = [[timed.mean_s() for timed in of]]
    for _ in range(RESAMPLES):
        counts = [np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64) for n in sizes]
        drawn.append([timed.seconds(*counts) for timed in of])
    return np.array(drawn).T

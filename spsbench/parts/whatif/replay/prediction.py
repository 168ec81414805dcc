"""From loops over texts and the times of loops to tokens a loop, milliseconds a token, and a speedup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spsbench.base import MODIFIED_REJECTION, Floats, Interval
from spsbench.law import DraftedLoops, TextLoops
from spsbench.parts.whatif.quantiles import weighted_quantiles
from spsbench.parts.whatif.replay.cells import Cell
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.times import COLD, PROMPTS, LoopCosts, LoopTimes, resampled
from spsbench.stats import LEVEL, alpha_needed, c_allowed, pooled_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterForecast(Cell):
    """A cell over all texts: predicted, and as the run had it.

    Attributes:
        emitted: [K+1] the share of loops that emit 1 to K+1 tokens.
        bytes: of weights and caches, the target's among them, at the longest text.
        ars: the same texts by ArS; None where nothing was timed.
        measured: tokens per loop of the run's own arm; None without one.
    """

    work: Work
    emitted: Floats
    bytes: int
    times: LoopTimes | None = None
    ars: Timed | None = None
    measured: float | None = None

    @property
    def tokens_per_loop(self) -> Interval:
        return self.work.tokens_per_loop

    @property
    def r_prime(self) -> float:
        """Tokens per loop over K+1 (Chen et al. 2023)."""
        return self.tokens_per_loop.estimate / (self.k + 1)

    @property
    def loops(self) -> tuple[int, ...]:
        """Loops of a sequence, 50th, 90th and 99th percentile."""
        longest = max(len(text.counts) for text in self.work.texts)
        counts = np.sum([np.pad(text.counts, (0, longest - len(text.counts))) for text in self.work.texts], 0)
        return tuple(map(int, weighted_quantiles(np.arange(float(longest)), counts, (0.5, 0.9, 0.99))))

    @property
    def timed(self) -> Timed | None:
        return None if self.times is None else Timed(self.work, self.times)

    @property
    def predicted(self) -> Predicted | None:
        return None if self.timed is None or self.ars is None else predict(self.timed, self.ars)

    @property
    def even(self) -> Even | None:
        """Where it would be as fast as ArS; in alpha, which is that of modified rejection only."""
        if self.timed is None or self.ars is None or self.rule != MODIFIED_REJECTION:
            return None
        return break_even(self.timed, self.ars, self.k)

    @property
    def reading_again(self) -> float | None:
        """Which share of the time a token an engine saves that keeps states; None where none is put back."""
        if self.times is None or self.sought.pair.target.rolled_back_by != "replay":
            return None
        return 1.0 - Timed(self.work, self.times.states_kept).mean_s() / Timed(self.work, self.times).mean_s()


@dataclass(frozen=True)
class TextWork:
    """What decoding one text takes: [n+1] the distribution of its loops, and mean tokens before a loop."""

    prompt: int
    counts: Floats
    context: float


@dataclass(frozen=True)
class Work:
    """What decoding the texts takes, by prompt and by how many tokens a loop drafts.

    Attributes:
        tokens: [prompts] of its texts.
        loops: [prompts, D] expected loops that draft 0 to D-1 tokens; of a fixed K, and of ArS, D is 1.
        contexts: [prompts, D] tokens before such a loop, summed over them.
        first: [prompts, COLD, D] expected first, second... loops of a text that draft so many.
        texts: of a fixed K, for the tails.
    """

    tokens: Floats
    loops: Floats
    contexts: Floats
    first: Floats
    texts: tuple[TextWork, ...] = ()

    def part(self, prompts: Sequence[int]) -> Work:
        """Return the work of some of the prompts, by their numbers."""
        places = {prompt: place for place, prompt in enumerate(prompts)}
        texts = tuple(
            replace(text, prompt=places[text.prompt]) for text in self.texts if text.prompt in places
        )
        chosen = list(prompts)
        return Work(self.tokens[chosen], self.loops[chosen], self.contexts[chosen], self.first[chosen], texts)

    @property
    def tokens_per_loop(self) -> Interval:
        return pooled_ratio(self.tokens, self.loops.sum(1))

    @property
    def drafted_per_loop(self) -> Interval:
        return pooled_ratio(self.loops @ np.arange(self.loops.shape[1]), self.loops.sum(1))

    def per_token(self, costs: LoopCosts, beyond: Floats | None = None) -> Floats:
        """[1 + RESAMPLES] seconds a token: the estimate, then prompts and rounds resampled together.

        Args:
            beyond: [1 + RESAMPLES] seconds that every loop takes beyond its cost.
        """
        return self._per_token(costs, beyond, resampled(len(self.tokens), PROMPTS))

    def estimate(self, costs: LoopCosts, beyond: Floats | None = None) -> float:
        """Return the first value of ``per_token``."""
        return float(self._per_token(costs, beyond, np.ones((1, len(self.tokens))))[0])

    def _per_token(self, costs: LoopCosts, beyond: Floats | None, counts: Floats) -> Floats:
        seconds = (costs.at_zero * (counts @ self.loops)).sum(1)
        seconds += (costs.slope * (counts @ self.contexts)).sum(1)
        seconds += (costs.cold * np.tensordot(counts, self.first, 1)).sum((1, 2))
        if beyond is not None:
            seconds = seconds + beyond * (counts @ self.loops.sum(1))
        seconds_per_token: Floats = seconds / (counts @ self.tokens)
        return seconds_per_token


def work_of(texts: Sequence[TargetText], laws: Sequence[TextLoops] | None = None) -> Work:
    """Return the work of loops with a fixed K over texts; without laws of ArS, one token a loop."""
    names = list(dict.fromkeys(text.name for text in texts))
    drafted, each = [], []
    for number, text in enumerate(texts):
        n = len(text.tokens)
        law = None if laws is None else laws[number]
        starts = np.ones(n) if law is None else law.starts[0]
        first = (np.arange(COLD) < n).astype(np.float64) if law is None else law.begun(COLD)
        counts = np.eye(n + 1)[n] if law is None else law.counts
        context = float(starts @ (len(text.prompt) + np.arange(n)) / starts.sum())
        drafted.append(DraftedLoops(starts[:, None], first[:, None]))
        each.append(TextWork(names.index(text.name), counts, context))
    return replace(drafted_work(texts, drafted, 0), texts=tuple(each))


def drafted_work(texts: Sequence[TargetText], drafted: Iterable[DraftedLoops], k: int) -> Work:
    """Return the work of loops over texts that draft 0 to K tokens."""
    names = list(dict.fromkeys(text.name for text in texts))
    tokens, loops, contexts = np.zeros(len(names)), *np.zeros((2, len(names), k + 1))
    first = np.zeros((len(names), COLD, k + 1))
    for text, law in zip(texts, drafted, strict=True):
        prompt = names.index(text.name)
        width = law.loops.shape[1]
        tokens[prompt] += len(text.tokens)
        loops[prompt, :width] += law.loops.sum(0)
        contexts[prompt, :width] += (len(text.prompt) + np.arange(len(text.tokens))) @ law.loops
        first[prompt, :, :width] += law.first
    return Work(tokens, loops, contexts, first)


def interval_of(values: Floats) -> Interval:
    """Return the interval of an estimate, from the estimate and its resampled values."""
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values[0]), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a cell."""

    ms_per_token: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Timed:
    """Work of a fixed K, or of ArS, with the times of its loops."""

    work: Work
    times: LoopTimes

    def part(self, prompts: Sequence[int]) -> Timed:
        """Return the sequences of some of the prompts, by their numbers."""
        return Timed(self.work.part(prompts), self.times)

    def per_token(self) -> Floats:
        """[1 + RESAMPLES] seconds a token; those of two arms are resampled alike."""
        return self.work.per_token(self.times.costs)

    def mean_s(self) -> float:
        """Seconds a token, every prompt and round counted once."""
        return self.work.estimate(self.times.costs)

    def quantile_s(self, share: float) -> float:
        """Return the seconds below which so large a share of the sequences stays."""
        costs = self.times.costs
        extra = np.concatenate([[0.0], np.cumsum(costs.cold[0, :, 0])])
        seconds = []
        for text in self.work.texts:
            loops = np.arange(len(text.counts))
            a_loop = costs.at_zero[0, 0] + costs.slope[0, 0] * text.context
            seconds.append(loops * a_loop + extra[np.minimum(loops, COLD)])
        weights = np.concatenate([text.counts for text in self.work.texts])
        return float(weighted_quantiles(np.concatenate(seconds), weights, [share])[0])


@dataclass(frozen=True, slots=True)
class Even:
    """Where a cell would be as fast as ArS, all else being as it is; costs in ArS steps."""

    cost: float
    alpha: float | None
    c: float
    c_allowed: float | None


def break_even(own: Timed, ars: Timed, k: int) -> Even:
    """Return the break-even point of a cell with lookahead K."""
    step = ars.mean_s()
    tokens = float(own.work.tokens.sum() / own.work.loops.sum())
    cost = own.mean_s() * tokens / step
    c = float(own.times.drafting.mean()) / k / step
    return Even(cost, alpha_needed(k, cost), c, c_allowed(c, k, tokens, cost))


def predict(own: Timed, ars: Timed) -> Predicted:
    """Predict one cell, from the same prompts and rounds as ArS."""
    return Predicted(interval_of(1e3 * own.per_token()), faster(ars, own))


def faster(slow: Timed, fast: Timed) -> Interval:
    """Return how many times one's time per token the other's is, over the same prompts and rounds."""
    return interval_of(slow.per_token() / fast.per_token())

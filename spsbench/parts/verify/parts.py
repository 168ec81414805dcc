"""Tests of the sampler's parts: its warper, the drafter's law on tables, uniform numbers, the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.base import EAGER, Arm, Bools, Generation, Prompt, Request, SamplingParams, UsageError
from spsbench.decode import Draft, Drafter, FakeClock, Rule, TextDecoder, UniformStream, warp
from spsbench.decode import rows as loop_rows
from spsbench.drafters import CheckedDrafter, DrafterFault, build_rule
from spsbench.engines import EagerEngine
from spsbench.law import EXACT, NotAFunction, Scene, TableModel, random_rows, worst_difference
from spsbench.parts.verify.effort import Finding, Sizes, measured, skipped
from spsbench.parts.verify.messages import (
    BookedTime,
    DraftsRepeated,
    LoopLaws,
    NotOnTables,
    TimeDifference,
    UniformNumbers,
    WarpDistance,
)
from spsbench.parts.verify.subject import SamplerUnderTest, written
from spsbench.runner import interleaved
from spsbench.stats import FALSE_ALARM
from spsbench.testing import described as difference_shown
from spsbench.testing import scenes, small_tree

Row = NDArray[np.float64]


def brute_force(logits: Sequence[float] | Row, params: SamplingParams) -> Row:
    """Apply temperature, then top-k, then nucleus to one row; tokens that tie at an edge are all kept.

    Args:
        logits: [V], finite or minus infinity.
        params: temperature, top_k, top_p, greedy (the one-hot row of the first largest logit).

    Returns:
        [V] probabilities that sum to 1.
    """
    scores = np.asarray(logits, dtype=np.float64)
    if params.greedy:
        return np.asarray(np.arange(len(scores)) == scores.argmax(), dtype=np.float64)
    scores = scores / params.temperature
    if 0 < params.top_k < len(scores):
        scores = np.where(scores < np.sort(scores)[-params.top_k], -np.inf, scores)
    probs: Row = np.exp(scores - scores.max())
    probs /= probs.sum()
    if params.top_p < 1.0:
        mass = 0.0
        for probability in np.sort(probs)[::-1].tolist():
            mass += probability
            if mass >= params.top_p:
                break
        probs[probs < float(probability)] = 0.0
        probs /= probs.sum()
    return probs


def is_clear(logits: Sequence[float] | Row, params: SamplingParams, slack: float) -> bool:
    """Return whether rounding by ``slack`` leaves the same tokens: at an edge two warpers may differ.

    Args:
        logits: [V].
        slack: of the nucleus' mass, and of a logit relative to the largest.
    """
    if params.greedy:
        return True
    scores = np.asarray(logits, dtype=np.float64)
    least = slack * float(np.abs(scores[np.isfinite(scores)]).max())
    near = (params.top_p - slack, params.top_p, params.top_p + slack) if params.top_p < 1.0 else ()
    kept = [brute_force(scores, replace(params, top_p=min(max(p, 0.0), 1.0))) > 0 for p in near]
    before = brute_force(scores, replace(params, top_p=1.0)) > 0
    same = all(bool((some == kept[0]).all()) for some in kept)
    return same and all(_gap_at_edge(scores, some) > least for some in (before, *kept))


def _gap_at_edge(scores: Row, kept: Bools) -> float:
    """How far the least kept score lies above the largest dropped one."""
    return np.inf if kept.all() else float(scores[kept].min() - scores[~kept].max())


# Each stage alone can be right and their order wrong: so two of them at a time, with rows made flat
# enough that the cuts fall at different tokens.
_OTHERS = (
    SamplingParams(temperature=0.5, top_p=0.8),
    SamplingParams(temperature=2.0, top_p=0.8),
    SamplingParams(temperature=2.0, top_k=4, top_p=0.7),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.9),
    SamplingParams(greedy=True),
)
_ROWS = 6
_SLACK = 1e-4
_LIMIT = 1e-4


@torch.inference_mode()
def same_warp(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Compare both warpers on rows of target and draft, under the subject's sampling and others.

    Each row is warped alone, as a draft's are, and among others, as the target's are.
    """
    distances: list[tuple[float, SamplingParams]] = []
    at_an_edge = 0
    for rows in _flat_rows(subject, prompts):
        for sampling in dict.fromkeys((replace(subject.sampling, process=None), *_OTHERS)):
            together = _warped(rows, sampling)
            for index, row in enumerate(rows.double().cpu().numpy()):
                if not is_clear(row, sampling, _SLACK):
                    at_an_edge += 1
                    continue
                truth = torch.from_numpy(brute_force(row, sampling))
                for warped in (together[:, index], _warped(rows[index : index + 1], sampling)[:, 0]):
                    distance = float((warped.double().cpu() - truth).abs().sum(-1).max()) / 2
                    distances.append((distance, sampling))
    worst, where = max(distances, key=lambda each: each[0], default=(0.0, None))
    worst_sampling = "-" if where is None else where.described
    passed = len(distances) > 0 and all(distance <= _LIMIT for distance, _ in distances)
    return measured("warp", passed, WarpDistance(len(distances), at_an_edge, worst, worst_sampling, _LIMIT))


def _flat_rows(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """[n, V] logits of either model in each prompt and its text, at the flattest rows."""
    for prompt in prompts:
        tokens = torch.tensor(written(subject, prompt, subject.seed), device=subject.device)
        for model in (subject.target, subject.draft):
            logits = model.score_uncached(tokens)
            entropy = torch.special.entr(logits.float().softmax(-1)).sum(-1)
            yield logits[entropy.topk(min(_ROWS, len(logits))).indices]


def _warped(rows: Tensor, sampling: SamplingParams) -> Tensor:
    """[2, n, V] rows by the warper, and as a loop on their device holds its rows."""
    return torch.stack([warp(rows, sampling), loop_rows.warped(rows, sampling).dense()])


# --- the drafter: its contract, and the law of a loop on tables ---


LOOPS = 16
_PLAIN, _CUT = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.8)
_OF_TREES = ((3, 2),)
"""V of tables with trees, and the depth of dynamic ones; others have their own."""


@torch.inference_mode()
def kept_contract(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Check every proposal of some loops, and a second drafter's under the same numbers."""
    once, again = (_proposals(subject, prompts) for _ in range(2))
    differs = next((pair for pair in zip(once, again, strict=False) if pair[0] != pair[1]), None)
    if differs is not None:
        raise DrafterFault(
            f"the drafter {subject.drafter} proposed {differs[0]} and, built again and given the same "
            f"numbers, {differs[1]}"
        )
    lengths = sorted(map(len, once))
    return measured("contract", True, DraftsRepeated(len(once), lengths[0], lengths[-1]))


def _proposals(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    drafter = subject.build_drafter(subject.sampling)
    drafts = []
    if not isinstance(drafter, CheckedDrafter):
        drafter = CheckedDrafter(drafter, str(subject.drafter), subject.target.vocab_size)
    for seed, prompt in enumerate(prompts, start=subject.seed):
        with subject.loops(subject.target, drafter, prompt, seed) as begin:
            drafts += [
                loop.draft.tokens.tolist() for loop in islice(begin(), LOOPS) if loop.draft is not None
            ]
    return drafts


@torch.inference_mode()
def enumerated(subject: SamplerUnderTest, sizes: Sizes, wide: Sizes) -> Finding:
    """Compare the exact law of a loop with this drafter and rule on tables with the target's."""
    name = "enumeration"
    try:
        next(_scenes(subject, sizes[:1], _PLAIN)).make()
    except (UsageError, DrafterFault) as error:
        return skipped(name, NotOnTables(error))
    every: Iterator[Scene] = chain(_scenes(subject, sizes, _PLAIN), _scenes(subject, wide, _CUT))
    if subject.sampling.greedy:
        every = _scenes(subject, sizes + wide, SamplingParams(greedy=True))
    try:
        compared = [(worst_difference(scene), scene) for scene in every]
    except NotAFunction as error:
        return Finding(name, False, f"{error}")
    worst, scene = max(compared, key=lambda pair: (not pair[0].is_none, pair[0].size))
    lengths = sorted(set[int]().union(*(difference.drafted for difference, _ in compared)))
    laws = LoopLaws(
        situations=len(compared),
        worst=worst.size,
        limit=worst.limit,
        exact=int(worst.limit == EXACT),
        vocab_size=max(each.target.vocab_size for _, each in compared),
        k=max(each.k for _, each in compared),
        shortest=lengths[0],
        longest=lengths[-1],
    )
    finding = measured(name, worst.is_none, laws)
    return finding if worst.is_none else replace(finding, message=difference_shown(worst, scene))


def _scenes(subject: SamplerUnderTest, sizes: Sizes, sampling: SamplingParams) -> Iterator[Scene]:
    accept = build_rule(subject.rule).accept
    policy = str(subject.policy)
    drafter = small_tree(subject.drafter)
    for vocab_size, k in sizes if subject.shape is None else _OF_TREES:
        yield from scenes(str(drafter), accept, vocab_size, (k,), (sampling,), policy=policy)


# --- uniform numbers: uniform and independent, along a sequence and between sequences? ---

LONG = 64 * 1024
SHORT = 1024
_EXAMPLES, _SAMPLES, _LAGS = 8, 3, 32
# Four numbers of 24 bits: two equal windows among so many come by chance once in 10^18 runs.
_WINDOW = 4

Numbers = NDArray[np.float32]


def independent_uniforms(subject: SamplerUnderTest) -> Finding:
    """Test one long stream as each arm reads it, and the streams of a run's arms, examples and samples.

    Looks for repeated stretches, a law that is not uniform, and correlation: along a stream, between
    its parts, between streams.
    """
    seeds = run_seeds(subject)
    long = [long_stream(subject, n) for n in (1, 2 * subject.k + 1)]
    runs = np.stack([drawn(UniformStream(seed, subject.device), SHORT, SHORT) for seed in seeds])
    repeated = sum(repeats([stream]) for stream in long) + repeats(list(runs))
    p_values = {
        "uniform": min(1.0, len(long) * min(uniform_p(stream) for stream in long)),
        "uniform_first": uniform_p(runs[:, 0]),
        "serial": min(1.0, len(long) * min(serial_p(stream) for stream in long)),
        "parts": min(1.0, len(long) * min(crossed_p(stream.reshape(-1, SHORT)) for stream in long)),
        "streams": crossed_p(runs),
    }
    shared = len(seeds) - len(set(seeds))
    passed = repeated == 0 and shared == 0 and min(p_values.values()) * len(p_values) >= FALSE_ALARM
    return measured("uniforms", passed, UniformNumbers(LONG, len(seeds), shared, repeated, p_values))


def run_seeds(subject: SamplerUnderTest) -> list[int]:
    """Return each sequence's seed in a small run under the subject's sampling, by the runner's schedule."""
    sps = Arm("sps", subject.k, EAGER, "tested", subject.sampling)
    arms = [replace(sps, method="ars", k=0), sps, replace(sps, method="draft", k=0)]
    prompts = [Prompt(str(number), "", (0,), "") for number in range(_EXAMPLES)]
    return [turn.seed for turn in interleaved(prompts, _SAMPLES, arms, subject.seed)]


def long_stream(subject: SamplerUnderTest, n: int) -> Numbers:
    """[LONG] numbers of one sequence, taken ``n`` at a time as a loop takes them."""
    return drawn(UniformStream(subject.seed, subject.device), LONG, n)


def drawn(stream: UniformStream, count: int, n: int) -> Numbers:
    """[count] numbers, taken ``n`` a call."""
    calls = torch.cat([stream(n) for _ in range(math.ceil(count / n))])
    numbers: Numbers = calls[:count].cpu().numpy()
    return numbers


def repeats(streams: Sequence[Numbers]) -> int:
    """Return how many stretches of four numbers stand in the streams more than once."""
    windows = [np.lib.stride_tricks.sliding_window_view(stream, _WINDOW) for stream in streams]
    whole = np.ascontiguousarray(np.concatenate(windows)).view(f"V{4 * _WINDOW}").ravel()
    return len(whole) - len(np.unique(whole))


def uniform_p(numbers: Numbers) -> float:
    """Return the p-value of a Kolmogorov-Smirnov test against the uniform law."""
    from scipy.stats import kstest

    return float(kstest(numbers, "uniform").pvalue)


def serial_p(numbers: Numbers) -> float:
    """Return the p-value of a stream's correlation with itself, over ``_LAGS`` lags."""
    centred = numbers.astype(np.float64) - 0.5
    products = [float((centred[:-lag] * centred[lag:]).sum()) for lag in range(1, _LAGS + 1)]
    # Independent centred uniforms: each product has the variance (1/12)^2.
    z = [12 * value / math.sqrt(len(centred) - lag) for lag, value in enumerate(products, start=1)]
    return _bonferroni_p(max(map(abs, z)), _LAGS)


def crossed_p(streams: Numbers) -> float:
    """Return the p-value of the correlation between any two of [n, m] streams, number by number."""
    centred = streams.astype(np.float64) - 0.5
    products = centred @ centred.T
    above = products[np.triu_indices(len(streams), k=1)]
    return _bonferroni_p(12 * float(np.abs(above).max()) / math.sqrt(streams.shape[1]), len(above))


def _bonferroni_p(z: float, times: int) -> float:
    """Of the largest of ``times`` standard normal numbers, two-sided."""
    return min(1.0, times * math.erfc(z / math.sqrt(2)))


# --- the clock: is every second of decoding accounted for? ---

# Powers of two: sums of them are exact, and identify which of them is missing.
TARGET_S = 64.0
DRAFT_S = 4.0
TICK_S = 2.0**-10
SIZE = 4
_TOKENS = 24


class Timed(TableModel):
    """A table whose forwards take ``forward_s`` seconds."""

    def __init__(self, clock: FakeClock, forward_s: float, seed: int) -> None:
        super().__init__(random_rows(SIZE, seed), SIZE)
        self._clock, self._forward_s = clock, forward_s

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._clock.advance(self._forward_s)
        return super().score(tokens, last)


class TimedDrafter:
    """A drafter that takes as long as a draft model would: a forward to begin, and K to draft."""

    def __init__(self, drafter: Drafter, clock: FakeClock) -> None:
        self._drafter, self._clock = drafter, clock
        self.observe = drafter.observe

    def begin(self, prompt: Sequence[int]) -> None:
        self._clock.advance(DRAFT_S)
        self._drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self._clock.advance(k * DRAFT_S)
        return self._drafter.draft(tokens, k, u)


def booked_time(
    k: int, decoder: TextDecoder, make: Callable[[], Drafter] | None = None, rule: Rule | None = None
) -> Finding:
    """Compare what the engine booked in ArS and SpS with what passed, phase by phase and loop by loop."""
    wrong = list[str]()
    loops = 0
    for lookahead in (0, k):
        generation = timed(lookahead, decoder, make, rule)
        loops += len(generation.loops or [])
        wrong += [f"{'SpS' if lookahead else 'ArS'}, {text}" for text in differences(generation, lookahead)]
    finding = measured("clock", not wrong, BookedTime(loops, len(wrong)))
    return replace(finding, message=wrong[0]) if wrong else finding


def timed(
    k: int, decoder: TextDecoder, make: Callable[[], Drafter] | None = None, rule: Rule | None = None
) -> Generation:
    """Generate an output of the eager engine on tables, under the clock; by ArS if ``k`` is 0."""
    clock = FakeClock(TICK_S)
    cpu = torch.device("cpu")
    target = Timed(clock, TARGET_S, seed=1)
    draft = Timed(clock, DRAFT_S, seed=2) if k else None
    drafter_of = (lambda sampling: TimedDrafter(make(), clock)) if k and make else None
    engine = EagerEngine(target, draft, k, decoder, cpu, clock, rule, drafter_of)
    return engine.generate(Request((0, 1), _TOKENS, (), SamplingParams(), seed=0, fixed_length=True))


def differences(generation: Generation, k: int) -> Iterator[TimeDifference]:
    """Where the booked time differs from what passed; nothing if all is right.

    A look at the clock takes a tick. A loop has four laps, or five with a draft: ``other`` before and
    after, and one for each phase between. Around the loops lie two looks more.
    """
    phases = {
        "draft_s": k * DRAFT_S + TICK_S if k else 0.0,
        "verify_s": TARGET_S + TICK_S,
        "sample_s": TICK_S,
        "other_s": 2 * TICK_S,
    }
    loops = generation.loops or []
    for number, loop in enumerate(loops):
        for phase, seconds in {**phases, "loop_s": sum(phases.values())}.items():
            if getattr(loop, phase) != seconds:
                yield TimeDifference(f"loop {number}: {phase}", getattr(loop, phase), seconds)
    passed = sum(loop.loop_s for loop in loops) + 2 * TICK_S
    if generation.decode_s != passed:
        yield TimeDifference("decoding", generation.decode_s, passed)
    read = TARGET_S + (DRAFT_S if k else 0.0) + TICK_S
    if generation.prefill_s != read:
        yield TimeDifference("prefill", generation.prefill_s, read)

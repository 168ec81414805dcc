"""Theory against simulation: the same loops by formula, exactly and drawn, for every K."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from spsbench.base import MODIFIED_REJECTION, Interval, SamplingParams, UsageError
from spsbench.decode import Draft
from spsbench.drafters import build_rule
from spsbench.law import expected_tokens, loop_operations, minimum_gain, operations_factor
from spsbench.parts.whatif.simulate.loops import (
    SEQUENCE,
    Exact,
    LawCheck,
    Sampler,
    Simulated,
    check,
    exact,
    simulate,
)
from spsbench.parts.whatif.simulate.tables import Chain, Language, Source, Tables
from spsbench.stats import WhatIf, survival

Reason = Literal["noise", "alpha varies", "unexplained", "-"]

REACHED = 1e-3
"""An alpha that differs by less is the one that was asked for."""

_Z = 1.959964
"""Standard errors on either side of a 95% interval."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be simulated.

    Attributes:
        language: the target; its ``classes`` are set by each of ``classes``.
        alpha, distance: of draft and target; one of them is None, and the distance is solved for an alpha.
        operations: c^, operations of one draft run over those of one target run, per token.
    """

    source: Source
    language: Language
    classes: tuple[int, ...]
    alpha: float | None
    distance: float | None
    ks: tuple[int, ...]
    cost: float
    operations: float
    tokens: int
    sampler: Sampler

    @property
    def sequences(self) -> int:
        """Number of sequences for each K; two at least, or there is no interval."""
        return max(2, -(-self.tokens // SEQUENCE))


@dataclass(frozen=True, slots=True)
class Point:
    """One K.

    Attributes:
        formula: tokens per loop if tests are independent; None where tokens are judged together.
        exact: the same without its assumption, see ``Chain.tokens_per_loop`` and, of small tables, ``exact``;
            None where neither is known.
        reason: why the simulation differs from the formula: by ``noise``, if the interval holds the formula;
            since ``alpha varies``, if it holds the exact value; else it is ``unexplained``, or ``-`` without
            an exact value to test.
        operations_factor: Leviathan et al. 2022, Theorem 3.11, with the simulated tokens per loop.
    """

    simulated: Simulated
    formula: float | None
    exact: float | None
    reason: Reason
    cost: float
    operations_factor: float
    formula_operations_factor: float | None
    enumerated: Exact | None = None

    @property
    def k(self) -> int:
        return self.simulated.k

    @property
    def speedup(self) -> Interval:
        """Walltime factor over ArS: tokens per loop over ``cost``."""
        return self.simulated.tokens_per_loop.over(self.cost)

    @property
    def r_prime(self) -> Interval:
        """Tokens of a loop over K + 1."""
        return self.simulated.tokens_per_loop.over(self.k + 1)

    @property
    def sequence_time(self) -> tuple[float, float]:
        """Mean and standard deviation over sequences of the time for ``SEQUENCE`` tokens, in target steps."""
        times = self.simulated.by_sequence * self.cost
        return float(times.mean()), float(times.std(ddof=1))


@dataclass(frozen=True, slots=True)
class World:
    """One pair of tables.

    Attributes:
        accepts: exact mean over a target's text of the chance that the rule accepts; ``alpha`` for modified
            rejection.
        minimum_gain: Leviathan et al. 2022, Corollary 3.9.
    """

    classes: int
    contexts: int
    closeness: float
    alpha: float
    deviation: float
    accepts: float | None
    points: tuple[Point, ...]
    minimum_gain: float | None
    formula_fits: float | None
    exact_fits: float | None
    law: LawCheck

    def best_k(self, tokens: Callable[[Point], float | None]) -> int | None:
        """Return the fastest K by these tokens per loop; 0 if ArS is fastest, None if some are unknown."""
        by_k = {point.k: point for point in self.points}
        known = {point.k: count for point in self.points if (count := tokens(point)) is not None}
        loop = WhatIf(known.__getitem__, lambda k: by_k[k].cost)
        return loop.best_k(by_k) if known.keys() == by_k.keys() else None


def prepare(question: Question) -> list[tuple[float, Tables]]:
    """Return the distance and the tables of every world, which its source can make."""
    return [_distance_and_tables(question, classes) for classes in question.classes]


def _distance_and_tables(question: Question, classes: int) -> tuple[float, Tables]:
    language = replace(question.language, classes=classes)
    source = question.source
    distance = question.distance
    if distance is None:
        assert question.alpha is not None
        distance = distance_of(source, language, question.sampler.sampling, question.alpha)
    return distance, source.make(language, distance)


def distance_of(source: Source, language: Language, sampling: SamplingParams, alpha: float) -> float:
    """Return the distance at which target and draft have this ``alpha_leviathan``, by bisection of its
    logarithm.

    Alpha is exact, for an endless text of the target, and falls as the distance grows.
    """

    def alpha_at(distance: float) -> float:
        return Chain(source.make(language, distance).warped(sampling)).alpha

    def out_of_reach(limit: str) -> UsageError:
        return UsageError(
            f"{alpha:g} cannot be reached with --source {source.name}: {limit}.",
            flag="--alpha",
            remedy="Give another alpha, --source (vocabulary, sharpness) or --contexts, or no truncation.",
        )

    farthest = source.farthest(language.unequal)
    low, high = math.log(1e-7), math.log(farthest)
    least = alpha_at(farthest)
    if alpha < least - REACHED:
        raise out_of_reach(f"the farthest draft still has alpha {least:.3f}")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if alpha_at(math.exp(middle)) < alpha else (middle, high)
    reached_alpha = alpha_at(math.exp(low))
    if abs(reached_alpha - alpha) > REACHED:
        raise out_of_reach(f"the closest that is reached is {reached_alpha:.4f}")
    return math.exp(low)


def study(
    question: Question, pairs: Sequence[tuple[float, Tables]], tick: Callable[[], None] = lambda: None
) -> list[World]:
    """Simulate pairs of tables."""
    return [_simulated_world(question, distance, tables, tick) for distance, tables in pairs]


def _simulated_world(question: Question, distance: float, tables: Tables, tick: Callable[[], None]) -> World:
    sampler = question.sampler
    warped = tables.warped(question.sampler.sampling)
    chain = Chain(warped)
    rows = torch.from_numpy(warped.target), torch.from_numpy(warped.draft)
    draft = Draft(torch.zeros(len(rows[0]), dtype=torch.int64), rows[1])
    expected = np.asarray(build_rule(sampler.rule).expected(rows[0], draft).numpy())
    accepts = None if sampler.together else float(np.clip(chain.mean(expected), 0.0, 1.0))
    simulated = [
        simulate(tables, chain.text, expected, k, question.sequences, sampler, tick) for k in question.ks
    ]
    points = tuple(
        _beside_theory(question, chain, accepts, each, exact(warped, chain.text, each.k, sampler))
        for each in simulated
    )
    return World(
        tables.contexts.classes,
        tables.contexts.count,
        question.source.closeness(distance),
        chain.alpha,
        chain.deviation,
        accepts,
        points,
        None if accepts is None else minimum_gain(accepts, question.cost),
        _p_value(points, [point.formula for point in points]),
        _p_value(points, [point.exact for point in points]),
        check(warped, [text for each in simulated for text in each.texts], sampler.seed),
    )


def _beside_theory(
    question: Question, chain: Chain, accepts: float | None, simulated: Simulated, enumerated: Exact | None
) -> Point:
    sampler, k = question.sampler, simulated.k
    right = sampler.fault is None and sampler.rule.name == MODIFIED_REJECTION
    formula = None if accepts is None else expected_tokens(accepts, k)
    exact = chain.tokens_per_loop(k) if right else None if enumerated is None else enumerated.tokens_per_loop
    nodes = sampler.nodes(k)
    return Point(
        simulated,
        formula,
        exact,
        _reason(simulated.tokens_per_loop, formula, exact),
        1.0 + k * question.cost,
        loop_operations(question.operations, nodes) / simulated.tokens_per_loop.estimate,
        None if accepts is None else operations_factor(accepts, question.operations, k),
        enumerated,
    )


def _reason(measured: Interval, formula: float | None, exact: float | None) -> Reason:
    if formula is None:
        return "-" if exact is None else "noise" if _holds(measured, exact) else "unexplained"
    if _holds(measured, formula):
        return "noise"
    if exact is None:
        return "-"
    return "alpha varies" if _holds(measured, exact) else "unexplained"


def _holds(interval: Interval, value: float) -> bool:
    if interval.low is None or interval.high is None:
        return bool(np.isclose(interval.estimate, value))
    return interval.low <= value <= interval.high


def _p_value(points: Sequence[Point], values: Sequence[float | None]) -> float | None:
    """Of the simulated tokens per loop if these values were true, K by K independent."""
    total = 0.0
    for point, value in zip(points, values, strict=True):
        interval = point.simulated.tokens_per_loop
        if value is None or interval.low is None or interval.high is None:
            return None
        total += ((interval.estimate - value) / ((interval.high - interval.low) / (2 * _Z))) ** 2
    return survival(total, len(points))

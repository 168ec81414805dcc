"""Why the speedup is not K+1: its factors, and how far alpha, c and K are from break-even.

K+1 is what SpS would gain if every draft token were accepted and nothing but one target step a loop
took time. Each factor brings in one measured number more, so that their running product ends at the
measured ratio by construction; a model enters only where a factor's name says so. Everything is
measured on the sequences that both arms finished, the ones that the speedup rests on.

A target step is the forward of an ArS step. Where a CUDA graph of one of the two arms did its forward and
what follows at once (``one_launch``), it is the forward and the draw, held against forward and verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spsbench.base.axes import identity, series
from spsbench.law.theory import expected_tokens
from spsbench.stats.messages import full_name
from spsbench.stats.messages.factors import (
    ACCEPTANCE,
    CORRELATION,
    DRAFTED,
    DRAFTING,
    END,
    HOST,
    JUDGING,
    LOOP_TIME,
    RESIDUAL_TITLES,
    REST,
    ROLLBACK,
    SELECTION,
    TEXTS,
    VERIFYING,
    SpeedupExplained,
)
from spsbench.stats.predict.costs import loop_cost, one_launch
from spsbench.stats.predict.whatif import KS, MOST_K, WhatIf, alpha_needed, c_allowed, independent
from spsbench.stats.speedup import ArmSums, arm_sums, in_both, loops_of
from spsbench.store.summary_types import ArmFactors, ArmPrediction, ArmRow, BreakEven, Factor, Residual

if TYPE_CHECKING:
    import pandas as pd


def break_even(k: int, ars: ArmSums, sps: ArmSums, slope_ms: float | None = None) -> BreakEven:
    """Return the alpha, c and K at which the arm would be exactly as fast as ArS.

    * alpha: with the measured times, correlation and loss at the end.
    * c: how long a draft token may take, in target steps, with the measured tokens per loop.
    * K: the largest that would still gain, if tokens follow alpha (independent tests, times the
      measured correlation) and loops lie on a straight line: through this one with the fitted
      ``slope_ms``, else from one ArS step at K = 0, which holds what verifying more tokens costs.
    """
    step, loop = ars.seconds / ars.tokens, sps.seconds / sps.loops
    emitted, cost = sps.tokens / sps.loops, loop / step
    kept = emitted / expected_tokens(sps.alpha, k)
    measured_c = allowed_c = None
    # What K more tokens cost, in ArS steps.
    more = max(cost - 1.0, 0.0) if slope_ms is None else k * slope_ms / 1e3 / step
    target = ars.verify_s / ars.loops
    if ars.sees_phases and sps.sees_phases and target > 0:
        drafted = sps.drafted / sps.loops or float(k)
        drafting = sps.draft_s / sps.loops / drafted
        if slope_ms is None:
            more = max(more, k * drafting / step)
        measured_c = drafting / target
        allowed = c_allowed(drafting / step, drafted, emitted, cost)
        allowed_c = None if allowed is None else allowed * step / target

    def line(other: int) -> float:
        # A loop costs something: a steep line falls below 0 at small K.
        return max(cost + (other / k - 1.0) * more, 1e-9)

    largest = WhatIf(independent(sps.alpha, kept), line).largest_k(KS)
    return {
        "measured_alpha": sps.alpha,
        "alpha": alpha_needed(k, cost, kept),
        "measured_c": measured_c,
        "c": allowed_c,
        "k": largest,
        "k_found": largest < MOST_K,
    }


def why(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[ArmFactors] | None:
    """Return the factors of every SpS arm that has a speedup and whose loops were seen."""
    entries: list[ArmFactors] = []
    for group in series(rows):
        cost = loop_cost(group)
        slope_ms = None if cost is None or cost.r_squared is None else cost.slope_ms  # two K are no fit
        for row in (row for row in group if row["method"] == "sps" and row["speedup"]):
            pair = _sums_of_both(row, by_arm, loops_by_arm)
            if pair is not None:
                ars, sps = pair
                if one_launch(row, *(each for each in rows if each["arm"] == _own_baseline(row))):
                    ars, sps = ars.with_samples(), sps.with_samples()
                entries.append(explain(row, ars, sps, slope_ms))
    return entries or None


def explain(row: ArmRow, ars: ArmSums, sps: ArmSums, slope_ms: float | None = None) -> ArmFactors:
    """Return the factors of one arm; ``running`` is the product of K+1 and all of them so far."""
    running = float(row["k"] + 1)
    factors: list[Factor] = []
    for name, factor, evidence in [*_tokens_factors(row["k"], sps), *_time_factors(row["k"], ars, sps)]:
        running *= factor
        factors.append(
            {
                "name": name,
                "factor": factor,
                "evidence": evidence,
                "running": running,
                "title": TEXTS[name].title,
                "remedy": TEXTS[name].remedy,
            }
        )
    binding = min(factors, key=lambda factor: factor["factor"])
    speedup = (ars.seconds / ars.tokens) / (sps.seconds / sps.tokens)
    even = break_even(row["k"], ars, sps, slope_ms)
    return {
        **identity(row),
        "lossless": row.get("lossless", True),
        "baseline": _own_baseline(row),
        "speedup": speedup,
        "factors": factors,
        "binding": binding["name"],
        "break_even": even,
        "sentence": str(
            SpeedupExplained(full_name(row), row["k"], binding["name"], binding["factor"], speedup, even)
        ),
    }


def _sums_of_both(
    row: ArmRow, by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame]
) -> tuple[ArmSums, ArmSums] | None:
    """Of the baseline and of the arm; None if a loop or its accepted tokens were not seen."""
    baseline = _own_baseline(row)
    if baseline is None:
        return None
    names = (baseline, row["arm"])
    if not all(name in by_arm and name in loops_by_arm for name in names):
        return None
    both = in_both(*(by_arm[name] for name in names))
    ars, sps = (
        arm_sums(samples, loops_of(loops_by_arm[name], samples, len(by_arm[name])))
        for name, samples in zip(names, both, strict=True)
    )
    if ars is None or sps is None:
        return None
    usable = sps.tested > 0 and sps.accepted >= 0 and sps.seconds > 0 and ars.seconds > 0
    return (ars, sps) if usable else None


def _own_baseline(row: ArmRow) -> str | None:
    """The ArS by whose steps a loop is explained: its own engine's."""
    return row.get("own_baseline") or row["baseline"]


_Measured = tuple[str, float, dict[str, float]]
"""A factor's name, its value, and the numbers that it is made of."""


def _tokens_factors(k: int, sps: ArmSums) -> list[_Measured]:
    """From K+1 tokens to those that a loop adds to the output."""
    independent = expected_tokens(sps.alpha, k)
    emitted = sps.tokens / sps.loops
    return [
        (ACCEPTANCE, independent / (k + 1), {"alpha": sps.alpha, "tokens_per_loop": independent}),
        (CORRELATION, sps.length / independent, {"tokens_per_loop": sps.length}),
        (END, emitted / sps.length, {"tokens_per_loop": emitted}),
    ]


def _time_factors(k: int, ars: ArmSums, sps: ArmSums) -> list[_Measured]:
    """From one target step a loop to a loop's time over that of an ArS token."""
    step, loop = ars.seconds / ars.tokens, sps.seconds / sps.loops
    target = ars.verify_s / ars.loops
    drafting = sps.draft_s / sps.loops
    verifying = sps.verify_s / sps.loops
    seen = ars.sees_phases and sps.sees_phases
    if not (seen and target > 0 and verifying + drafting > 0):
        return [(LOOP_TIME, step / loop, {"ars_step_ms": 1e3 * step, "loop_ms": 1e3 * loop})]
    forwards = drafting + verifying
    rolling = sps.rollback_s / sps.loops
    spent = forwards + rolling
    states = [] if not rolling else [(ROLLBACK, forwards / spent, {"rollback_ms": 1e3 * rolling})]
    verify, rest = (JUDGING, HOST) if sps.at_once else (VERIFYING, REST)
    a_draft = drafting / (sps.drafted / sps.loops or float(k))  # fewer than K where a drafter or policy stops
    return [
        (
            DRAFTING,
            target / (target + drafting),
            {"target_ms": 1e3 * target, "draft_ms_per_token": 1e3 * a_draft, "c": a_draft / target},
        ),
        (
            verify,
            (target + drafting) / forwards,
            {"target_ms": 1e3 * target, "verify_ms": 1e3 * verifying, "ratio": verifying / target},
        ),
        *states,
        (
            rest,
            spent / loop * (step / target),
            {
                "ars_rest_ms": 1e3 * (step - target),
                "sps_sample_ms": 1e3 * sps.sample_s / sps.loops,
                "sps_rest_ms": 1e3 * (loop - spent),
            },
        ),
    ]


def residual_factors(arm: ArmPrediction, factors: ArmFactors) -> list[Residual]:
    """Return what measured over predicted is a product of, largest effect first."""
    alpha, c, k = arm["alpha"], arm["c"], factors["k"]
    by_name = {factor["name"]: factor["factor"] for factor in factors["factors"]}
    if alpha is None or c is None or LOOP_TIME in by_name:
        return []
    factor_of = {
        SELECTION: by_name[ACCEPTANCE] * (k + 1) / expected_tokens(alpha, k),
        CORRELATION: by_name[CORRELATION],
        END: by_name[END],
        DRAFTED: by_name[DRAFTING] * (1.0 + k * c),
        **{name: by_name[name] for name in (VERIFYING, REST, JUDGING, HOST) if name in by_name},
    }
    ordered = sorted(factor_of.items(), key=lambda item: -abs(math.log(item[1])))
    return [{"name": name, "title": RESIDUAL_TITLES[name], "factor": value} for name, value in ordered]


def residual_cause(residual: float | None, factors: Sequence[Residual]) -> Residual | None:
    """Return the factor that does most for a residual of this sign; None where there is none."""
    if not residual:  # None, or exactly as predicted
        return None
    towards = [one for one in factors if (one["factor"] > 1.0) == (residual > 0.0)]
    return next(iter(towards), None)

"""What a loop costs against K, the speedup that theory predicts from it, and what hindsight would gain.

Leviathan et al. 2022 predict from alpha and c. Their alpha is fed from teacher forcing on ArS text
alone (``alpha_leviathan``): an alpha solved from the measured length would predict itself. Chen et
al. 2023 take the measured r' and two step times. Both take verifying K+1 tokens as one target step
and everything else as free, so that the residual, with its sign, is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.axes import FIXED, MODEL, identity, place, series, series_axes, unusual
from spsbench.base.records import GRAPHS, SHARDS_APART
from spsbench.law import theory
from spsbench.law.text_loops import accepted_by_token, anchored, loops_over
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.stats.predict.whatif import KS, WhatIf, leviathan
from spsbench.stats.speedup import column, pair, shown, speedup_over_prompts
from spsbench.store.summary_types import (
    Acceptance,
    AdaptiveGain,
    ArmPrediction,
    ArmRow,
    Estimate,
    Hindsight,
    LoopLine,
    Prediction,
    SeriesPrediction,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Milliseconds of a loop against K: a line for K from 1 on, and the ArS step at K = 0. ``r_squared`` is
    the share of the arms' variance that the line explains; None with two Ks."""

    intercept_ms: float
    slope_ms: float
    r_squared: float | None
    ks: tuple[int, ...]
    ars_ms: float | None

    def at(self, k: float | Floats) -> Floats:
        """Return the milliseconds of a loop with lookahead ``k``, a number or an array; 0 drafts nothing."""
        line = self.intercept_ms + self.slope_ms * np.asarray(k, dtype=np.float64)
        nothing = self.intercept_ms if self.ars_ms is None else self.ars_ms
        return np.where(np.asarray(k) == 0, nothing, line)


def loop_ms(row: ArmRow) -> float | None:
    """Return the decoding time per loop of an arm, by the wall: ms/token times tokens per loop."""
    if row["ms_per_token"] is None or row["tokens_per_loop"] is None:
        return None
    return row["ms_per_token"] * row["tokens_per_loop"]


def loop_cost(group: Sequence[ArmRow]) -> LoopCost | None:
    """Return the cost of a loop from the arms of one sampling and engine."""
    points = {row["k"]: loop_ms(row) for row in group if row["method"] == "sps"}
    seen = {k: value for k, value in sorted(points.items()) if value is not None}
    if len(seen) < 2:
        return None
    ks, values = np.array(list(seen), dtype=np.float64), np.array(list(seen.values()))
    slope, intercept = np.polyfit(ks, values, 1)
    spread = float(np.square(values - values.mean()).sum())
    rest = float(np.square(values - intercept - slope * ks).sum())
    fit = 1.0 - rest / spread if len(seen) > 2 and spread > 0 else None
    ars = next((loop_ms(row) for row in group if row["method"] == "ars"), None)
    return LoopCost(float(intercept), float(slope), fit, tuple(seen), ars)


def one_launch(*rows: ArmRow) -> bool:
    """Return whether a CUDA graph of one of these arms did a forward of the target and what follows at once.

    In a graph the rows are warped, and without a draft the token is drawn too. The arm's ``verify`` is then
    the time of all that, and no phase of it is that of an arm of another mode: only ``verify`` and ``sample``
    together are.
    """
    return any(GRAPHS in (row["target_mode"] or "").split(SHARDS_APART) for row in rows)


def draft_over_target(row: ArmRow, group: Sequence[ArmRow]) -> tuple[float | None, str]:
    """Return c, the time of one draft run over that of one target run, and where it was measured.

    From the loops: drafting per drafted token over the verify phase of ArS, with what the processes of a
    split target say to each other in it, and with the draw where ``one_launch`` did both. Where an engine
    sees no phases, from the draft alone against ArS, both whole; that says nothing about another drafter.
    """
    ars = next((other for other in group if other["method"] == "ars"), None)
    draft = next((other for other in group if other["method"] == "draft"), None)
    drafting = row["loop_time"]["draft_ms"] if row["loop_time"] else None
    step = ars["loop_time"] if ars else None
    drafted = row.get("drafted_per_loop") or row["k"]
    if drafting is not None and drafted and step and step["verify_ms"] is not None:
        target = step["verify_ms"] + (step.get("comm_ms") or 0.0)
        if one_launch(row, *([ars] if ars else [])):
            target += step["sample_ms"] or 0.0
        if target:
            return drafting / drafted / target, "loops"
    runs_it = row.get("drafter") in (None, MODEL)
    if runs_it and ars and draft and ars["ms_per_token"] and draft["ms_per_token"]:
        return draft["ms_per_token"] / ars["ms_per_token"], "draft alone"
    return None, "not measured"


_MOST_K = 16
"""The predicted curve of a sweep runs at least this far."""


def prediction(
    rows: Sequence[ArmRow], info: Mapping[str, Any], replays: Mapping[str, Estimate] | None = None
) -> Prediction | None:
    """Return predictions for every SpS arm, and the best K per sampling and engine."""
    models = info.get("models") or {}
    draft, target = ((models.get(role) or {}).get("parameters") for role in ("draft", "target"))
    operations = draft / target if draft is not None and target else None  # c^, by numbers of parameters
    arms: list[ArmPrediction] = []
    samplings: list[SeriesPrediction] = []
    for group in series(rows):
        predictions = [
            _arm_prediction(row, accepted, group, operations, (replays or {}).get(row["arm"]))
            for row in group
            if (accepted := row["acceptance"])
        ]
        if predictions:
            arms += predictions
            samplings.append(_series_prediction(group, predictions))
    return {"arms": arms, "samplings": samplings} if arms else None


def _arm_prediction(
    row: ArmRow,
    acceptance: Acceptance,
    group: Sequence[ArmRow],
    operations: float | None,
    replayed: Estimate | None,
) -> ArmPrediction:
    """``predicted`` by Leviathan, ``chen`` by Chen and ``residual`` = measured - predicted.

    Predicted is the gain over the ArS of the same engine, in whose step c is measured.
    """
    k = row["k"]
    speedup = row["own_speedup"] if row.get("own_baseline") else row["speedup"]
    alpha = acceptance.get("alpha_leviathan")
    if alpha is not None:
        alpha = min(max(alpha, 0.0), 1.0)  # a mean of sums of float32 may pass 1 by its last digit
    c, source = draft_over_target(row, group)
    predicted = None if alpha is None or c is None else leviathan(alpha, c).speedup(k)
    chen = None if c is None else theory.chen_speedup(acceptance["r_prime"], k, 1.0, c)
    measured = None if speedup is None else speedup["ratio"]
    return {
        **identity(row),
        "alpha": alpha,
        "c": c,
        "c_source": source,
        "measured": measured,
        "low": None if speedup is None else speedup["low"],
        "high": None if speedup is None else speedup["high"],
        "predicted": predicted,
        "residual": None if measured is None or predicted is None else measured - predicted,
        "chen": chen,
        "chen_residual": None if measured is None or chen is None else measured - chen,
        "tokens_per_loop_predicted": None if alpha is None else theory.expected_tokens(alpha, k),
        "tokens_per_loop_replayed": replayed,
        "tokens_per_loop_kept": row["tokens_per_loop"],
        "tokens_per_loop_measured": acceptance["mean_acceptance_length"],
        "operations_factor": None
        if alpha is None or operations is None
        else theory.operations_factor(alpha, operations, k),
    }


def _series_prediction(group: Sequence[ArmRow], arms: list[ArmPrediction]) -> SeriesPrediction:
    """Best K and curve from alpha and the median c of the arms, and the loop's line in K."""
    alpha = next((arm["alpha"] for arm in arms if arm["alpha"] is not None), None)
    c = _median([arm["c"] for arm in arms if arm["c"] is not None])
    result: SeriesPrediction = {
        **series_axes(arms[0]),
        "alpha": alpha,
        "c": c,
        "best_k": None,
        "best_speedup": None,
        "minimum_gain": None,
        "curve": None,
        "loop": _loop_line(loop_cost(group), group),
    }
    if alpha is None or c is None:
        return result
    loop = leviathan(alpha, c)
    best = loop.best_k(KS)
    last = max(arm["k"] for arm in arms)
    ks = range((max(_MOST_K, last) if len(arms) > 1 else last) + 1)
    return {
        **result,
        "best_k": best,
        "best_speedup": loop.speedup(best),
        "minimum_gain": theory.minimum_gain(alpha, c),
        "curve": [{"k": k, "speedup": loop.speedup(k)} for k in ks],
    }


def _loop_line(cost: LoopCost | None, group: Sequence[ArmRow]) -> LoopLine | None:
    """Figure 1, right: the loop's time against K, whose slope should be the draft's time per token."""
    if cost is None:
        return None
    drafting = [
        times["draft_ms"] / (row.get("drafted_per_loop") or row["k"])
        for row in group
        if row["method"] == "sps" and (times := row["loop_time"]) and times["draft_ms"] is not None
    ]
    return {
        "intercept_ms": cost.intercept_ms,
        "slope_ms": cost.slope_ms,
        "r_squared": cost.r_squared,
        "ks": list(cost.ks),
        "ars_ms": cost.ars_ms,
        "drafting_ms_per_token": _median(drafting),
        "draft_alone_ms_per_token": next(
            (row["ms_per_token"] for row in group if row["method"] == "draft"), None
        ),
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def hindsight(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[Hindsight] | None:
    """Return the gain of the right K in every loop, known afterwards, wherever there are two Ks above 0.

    Leviathan et al. 2022 speak of an oracle that knows in each loop how many tokens will pass; they put its
    gain at up to about 60%. No sampler can be that oracle: this bounds how much a K that adapts could be
    worth here at the very most. The oracle drafts exactly the tokens that were accepted in the arm with the
    largest K and pays for them by the sweep's line of loop time against K. It cannot know what lies beyond
    that K, so the bound holds for lookaheads up to it: ``censored`` is the share of loops that accepted all.
    """
    gains: list[Hindsight] = []
    for group in series(rows):
        arms = [row for row in group if row["acceptance"] and row["arm"] in loops_by_arm]
        cost = loop_cost(group)
        lengths = {
            row["k"]: acceptance["mean_acceptance_length"]
            for row in arms
            if (acceptance := row["acceptance"])
        }
        if len(lengths) < 2 or cost is None or cost.intercept_ms <= 0 or cost.slope_ms < 0:
            continue  # a falling line: the times are too noisy
        widest = max(arms, key=lambda row: row["k"])
        accepted = column(loops_by_arm[widest["arm"]], "accepted")
        step = float(cost.at(0))
        costs = {k: float(cost.at(k)) / step for k in lengths}
        loop = WhatIf(lengths.__getitem__, costs.__getitem__)
        best = loop.best_k(lengths)
        fixed = step / loop.speedup(best)
        # Where drafting never pays, the oracle does not draft.
        oracle = min(float(cost.at(accepted).sum() / (accepted + 1.0).sum()), fixed)
        gains.append(
            {
                **series_axes(widest),
                "best_k": best,
                "fixed_ms_per_token": fixed,
                "oracle_ms_per_token": oracle,
                "gain_bound": fixed / oracle,
                "max_k": widest["k"],
                "censored": float(np.mean(accepted >= widest["k"])),
                "adaptive": list(_adaptive_gains(arms, rows, by_arm)),
            }
        )
    return gains or None


def _adaptive_gains(
    fixed: Sequence[ArmRow], rows: Sequence[ArmRow], by_arm: Mapping[str, pd.DataFrame]
) -> Iterator[AdaptiveGain]:
    """Of the arms that differ from those of fixed K only in policy, over the fastest of these."""
    timed = [row for row in fixed if row["ms_per_token"] is not None]
    best = min(timed, key=lambda row: row["ms_per_token"] or 0.0, default=None)
    if best is None:
        return
    common = place(best, "k", "policy")
    for row in rows:
        adapts = row["policy"] not in (None, FIXED) and place(row, "k", "policy") == common
        if not adapts or row["arm"] not in by_arm or row["ms_per_token"] is None:
            continue
        gain = shown(speedup_over_prompts(pair(by_arm[best["arm"]], by_arm[row["arm"]])))
        if gain is not None:
            yield {
                "arm": row["arm"],
                "policy": str(row["policy"]),
                "fixed_k": best["k"],
                "ms_per_token": row["ms_per_token"],
                "gain": gain,
            }


def replayed(evidence: pd.DataFrame, rows: Sequence[ArmRow]) -> dict[str, Estimate]:
    """Return tokens per loop that a run's ArS texts predict for its SpS arms, with the interval over prompts.

    Of every ArS token the run knows log q and log p, by teacher forcing. That is all that the law needs, for
    every K at once, without independence of tests and without a constant alpha (``law.text_loops``).
    """
    by_arm: dict[str, Estimate] = {}
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        of_sampling = [row for row in rows if row["sampling"] == sampling]
        ars = next((row["arm"] for row in of_sampling if row["method"] == "ars"), None)
        texts = list(_acceptance_chances(evidence[evidence["arm"] == ars]))
        arms = {row["arm"]: row["k"] for row in of_sampling if row["method"] == "sps" and not unusual(row)}
        if texts:
            by_arm |= {arm: _tokens_per_loop(texts, k) for arm, k in arms.items()}
    return by_arm


def _acceptance_chances(ars: pd.DataFrame) -> Iterator[tuple[str, Floats]]:
    """(prompt, [n] of each token) of texts that were read as a whole."""
    key = ["example_id", "sample_index"]
    for (prompt, _), text in ars.sort_values([*key, "position"]).groupby(key, sort=False):
        known = text[["log_target", "log_draft"]].to_numpy(dtype=np.float64).T
        if not np.isnan(known).any() and int(text["position"].iloc[-1]) == len(text) - 1:
            yield str(prompt), accepted_by_token(*known)


def _tokens_per_loop(texts: Sequence[tuple[str, Floats]], k: int) -> Estimate:
    sums: Mapping[str, Floats] = {prompt: np.zeros(2) for prompt, _ in texts}
    for prompt, chances in texts:
        sums[prompt][:] += len(chances), loops_over(anchored(chances, k)).loops
    ratio = pooled_ratio(*np.array(list(sums.values())).T)
    return {"estimate": ratio.estimate, "low": ratio.low, "high": ratio.high}

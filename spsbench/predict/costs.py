"""What a loop costs against K, and the speedup that theory predicts from it.

Leviathan et al. 2022 predict from alpha and c. Their alpha is fed from teacher forcing on ArS text
alone (``alpha_leviathan``): an alpha solved from the measured length would predict itself. Chen et
al. 2023 take the measured r' and two step times. Both take verifying K+1 tokens as one target step
and everything else as free, so that the residual, with its sign, is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spsbench.axes import MODEL, identity, series, series_axes
from spsbench.law import theory
from spsbench.predict.whatif import KS, leviathan
from spsbench.summary_types import (
    Acceptance,
    ArmPrediction,
    ArmRow,
    Estimate,
    LoopLine,
    LoopTime,
    Prediction,
    SeriesPrediction,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Milliseconds of a loop against K: a line for K from 1 on, and the ArS step at K = 0.

    Attributes:
        r_squared: share of the variance between the arms that the line explains; None with two Ks.
    """

    intercept_ms: float
    slope_ms: float
    r_squared: float | None
    ks: tuple[int, ...]
    ars_ms: float | None

    def at(self, k: float | Floats) -> Floats:
        """Milliseconds of a loop with lookahead ``k``, a number or an array; 0 drafts nothing."""
        line = self.intercept_ms + self.slope_ms * np.asarray(k, dtype=np.float64)
        nothing = self.intercept_ms if self.ars_ms is None else self.ars_ms
        return np.where(np.asarray(k) == 0, nothing, line)


def loop_ms(row: ArmRow) -> float | None:
    """Decoding time per loop of an arm, by the wall: ms/token times tokens per loop."""
    if row["ms_per_token"] is None or row["tokens_per_loop"] is None:
        return None
    return row["ms_per_token"] * row["tokens_per_loop"]


def loop_cost(group: Sequence[ArmRow]) -> LoopCost | None:
    """The cost of a loop from the arms of one sampling and engine."""
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


def draft_over_target(row: ArmRow, group: Sequence[ArmRow]) -> tuple[float | None, str]:
    """c, the time of one draft run over that of one target run, and where it was measured.

    From the loops: drafting per drafted token over the verify phase of ArS. Where an engine sees no
    phases, from the draft alone against ArS, both whole; that says nothing about another drafter.
    """
    ars = next((other for other in group if other["method"] == "ars"), None)
    draft = next((other for other in group if other["method"] == "draft"), None)
    drafting = row["loop_time"]["draft_ms"] if row["loop_time"] else None
    target = _forward_ms(ars["loop_time"]) if ars and ars["loop_time"] else None
    drafted = row.get("drafted_per_loop") or row["k"]
    if drafting is not None and target and drafted:
        return drafting / drafted / target, "loops"
    runs_it = row.get("drafter") in (None, MODEL)
    if runs_it and ars and draft and ars["ms_per_token"] and draft["ms_per_token"]:
        return draft["ms_per_token"] / ars["ms_per_token"], "draft alone"
    return None, "not measured"


def _forward_ms(times: LoopTime) -> float | None:
    """A pass of the target, with what the processes of a split one say to each other in it."""
    verifying = times["verify_ms"]
    return None if verifying is None else verifying + (times.get("comm_ms") or 0.0)


_MOST_K = 16
"""The predicted curve of a sweep runs at least this far."""


def prediction(
    rows: Sequence[ArmRow], info: Mapping[str, Any], replays: Mapping[str, Estimate] | None = None
) -> Prediction | None:
    """Predictions for every SpS arm, and the best K per sampling and engine."""
    arms: list[ArmPrediction] = []
    samplings: list[SeriesPrediction] = []
    told = replays or {}
    for group in series(rows):
        operations = _operations_ratio(info)
        found = [
            _arm(row, accepted, group, operations, told.get(row["arm"]))
            for row in group
            if (accepted := row["acceptance"])
        ]
        if found:
            arms += found
            samplings.append(_sampling(group, found))
    return {"arms": arms, "samplings": samplings} if arms else None


def _arm(
    row: ArmRow,
    acceptance: Acceptance,
    group: Sequence[ArmRow],
    operations: float | None,
    replayed: Estimate | None,
) -> ArmPrediction:
    """One arm: ``predicted`` by Leviathan, ``chen`` by Chen, and ``residual`` = measured - predicted."""
    k, speedup = row["k"], row["speedup"]
    alpha = _probability(acceptance.get("alpha_leviathan"))
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
        "residual": _difference(measured, predicted),
        "chen": chen,
        "chen_residual": _difference(measured, chen),
        "tokens_per_loop_predicted": None if alpha is None else theory.expected_tokens(alpha, k),
        "tokens_per_loop_replayed": replayed,
        "tokens_per_loop_kept": row["tokens_per_loop"],
        "tokens_per_loop_measured": acceptance["mean_acceptance_length"],
        "operations_factor": None
        if alpha is None or operations is None
        else theory.operations_factor(alpha, operations, k),
    }


def _sampling(group: Sequence[ArmRow], arms: list[ArmPrediction]) -> SeriesPrediction:
    """Best K and curve from alpha and the median c of the arms, and the loop's line in K."""
    alpha = next((arm["alpha"] for arm in arms if arm["alpha"] is not None), None)
    c = _median([arm["c"] for arm in arms if arm["c"] is not None])
    found: SeriesPrediction = {
        **series_axes(arms[0]),
        "alpha": alpha,
        "c": c,
        "best_k": None,
        "best_speedup": None,
        "minimum_gain": None,
        "curve": None,
        "loop": _line(loop_cost(group), group),
    }
    if alpha is None or c is None:
        return found
    loop = leviathan(alpha, c)
    best = loop.best_k(KS)
    last = max(arm["k"] for arm in arms)
    ks = range((max(_MOST_K, last) if len(arms) > 1 else last) + 1)
    return {
        **found,
        "best_k": best,
        "best_speedup": loop.speedup(best),
        "minimum_gain": theory.minimum_gain(alpha, c),
        "curve": [{"k": k, "speedup": loop.speedup(k)} for k in ks],
    }


def _line(cost: LoopCost | None, group: Sequence[ArmRow]) -> LoopLine | None:
    """Figure 1, right: the loop's time against K, whose slope should be the draft's time per token."""
    if cost is None:
        return None
    alone = next((row["ms_per_token"] for row in group if row["method"] == "draft"), None)
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
        "draft_alone_ms_per_token": alone,
    }


def _operations_ratio(info: Mapping[str, Any]) -> float | None:
    """c^: operations of one draft run over one target run, as the ratio of their parameters."""
    models = info.get("models") or {}
    sizes = [(models.get(role) or {}).get("parameters") for role in ("draft", "target")]
    return sizes[0] / sizes[1] if sizes[0] is not None and sizes[1] else None


def _probability(value: float | None) -> float | None:
    """A mean of sums of float32 may pass 1 by its last digit."""
    return None if value is None else min(max(value, 0.0), 1.0)


def _difference(measured: float | None, predicted: float | None) -> float | None:
    return None if measured is None or predicted is None else measured - predicted


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None

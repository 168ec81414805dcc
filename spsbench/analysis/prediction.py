"""What the papers predict for every arm, set against what was measured.

Leviathan et al. 2022 predict from alpha and c. Their alpha is fed from teacher forcing on ArS text
alone (``alpha_leviathan``): an alpha solved from the measured length would predict itself. Chen et
al. 2023 take the measured r' and two step times. Both take verifying K+1 tokens as one target step
and everything else as free, so that the residual, with its sign, is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spsbench.analysis.costs import LoopCost, draft_over_target, loop_cost
from spsbench.axes import axes, identity, series
from spsbench.decode import theory

_MOST_K = 16
"""The predicted curve of a sweep runs at least this far."""


def prediction(rows: Sequence[dict[str, Any]], info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Predictions for every SpS arm, and the best K per sampling and engine.

    Args:
        rows: of the summary, with ``acceptance`` holding ``alpha_leviathan``.
        info: of ``summarise``; ``models`` with the ``parameters`` of both gives the operations factor.

    Returns:
        ``arms`` (see ``_arm``) and ``samplings`` (see ``_sampling``); None without an SpS arm.
    """
    arms, samplings = [], []
    for group in series(rows):
        found = [_arm(row, group, _operations_ratio(info)) for row in group if row["acceptance"]]
        if found:
            arms += found
            samplings.append(_sampling(group, found))
    return {"arms": arms, "samplings": samplings} if arms else None


def _arm(row: dict[str, Any], group: Sequence[dict[str, Any]], operations: float | None) -> dict[str, Any]:
    """One arm: ``predicted`` by Leviathan, ``chen`` by Chen, and ``residual`` = measured - predicted."""
    k, acceptance = int(row["k"]), row["acceptance"]
    alpha = _probability(acceptance.get("alpha_leviathan"))
    c, source = draft_over_target(row, group)
    speedup = row["speedup"] or dict.fromkeys(("ratio", "low", "high"))
    predicted = None if alpha is None or c is None else theory.walltime_factor(alpha, c, k)
    chen = None if c is None else theory.chen_speedup(acceptance["r_prime"], k, 1.0, c)
    measured = speedup["ratio"]
    return {
        **identity(row),
        "alpha": alpha,
        "c": c,
        "c_source": source,
        "measured": measured,
        "low": speedup["low"],
        "high": speedup["high"],
        "predicted": predicted,
        "residual": _difference(measured, predicted),
        "chen": chen,
        "chen_residual": _difference(measured, chen),
        "tokens_per_loop_predicted": None if alpha is None else theory.expected_tokens(alpha, k),
        "tokens_per_loop_measured": acceptance["mean_acceptance_length"],
        "operations_factor": None
        if alpha is None or operations is None
        else theory.operations_factor(alpha, operations, k),
    }


def _sampling(group: Sequence[dict[str, Any]], arms: list[dict[str, Any]]) -> dict[str, Any]:
    """Best K and curve from alpha and the median c of the arms, and the loop's line in K."""
    alpha = next((arm["alpha"] for arm in arms if arm["alpha"] is not None), None)
    c = _median([arm["c"] for arm in arms if arm["c"] is not None])
    found: dict[str, Any] = axes(arms[0])
    del found["k"]
    found |= {"alpha": alpha, "c": c, "best_k": None, "best_speedup": None, "minimum_gain": None}
    found |= {"curve": None, "loop": _line(loop_cost(group), group)}
    if alpha is None or c is None:
        return found
    best = theory.best_k(alpha, c)
    last = max(arm["k"] for arm in arms)
    ks = range((max(_MOST_K, last) if len(arms) > 1 else last) + 1)
    return found | {
        "best_k": best,
        "best_speedup": theory.walltime_factor(alpha, c, best),
        "minimum_gain": theory.minimum_gain(alpha, c),
        "curve": [{"k": k, "speedup": theory.walltime_factor(alpha, c, k)} for k in ks],
    }


def _line(cost: LoopCost | None, group: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Figure 1, right: the loop's time against K, whose slope should be the draft's time per token."""
    if cost is None:
        return None
    alone = next((row["ms_per_token"] for row in group if row["method"] == "draft"), None)
    drafting = [
        row["loop_time"]["draft_ms"] / (row.get("drafted_per_loop") or row["k"])
        for row in group
        if row["method"] == "sps" and row["loop_time"] and row["loop_time"]["draft_ms"] is not None
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

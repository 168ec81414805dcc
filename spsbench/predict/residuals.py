"""Why a measured speedup differs from Leviathan's formula: what the formula leaves out, factor by factor.

The formula takes alpha of the target's text, independent tests and a loop of one target step and K draft
steps. Measured over predicted is a product of what it takes for 1, each factor measured by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spsbench.law.theory import expected_tokens
from spsbench.predict.factors import (
    ACCEPTANCE,
    CORRELATION,
    DRAFTING,
    END,
    LOOP_TIME,
    REST,
    TITLES,
    VERIFYING,
)
from spsbench.summary_types import ArmFactors, ArmPrediction, Residual

SELECTION, DRAFTED = "selection", "drafted"
_OWN_TITLES = {
    SELECTION: "alpha of the positions that loops test against alpha of all positions",
    DRAFTED: "drafting in a loop against K times c",
}


def residual_factors(arm: ArmPrediction, factors: ArmFactors) -> list[Residual]:
    """What measured over predicted is a product of, largest effect first."""
    alpha, c, k = arm["alpha"], arm["c"], factors["k"]
    by_name = {factor["name"]: factor["factor"] for factor in factors["factors"]}
    if alpha is None or c is None or LOOP_TIME in by_name:
        return []
    found = {
        SELECTION: by_name[ACCEPTANCE] * (k + 1) / expected_tokens(alpha, k),
        CORRELATION: by_name[CORRELATION],
        END: by_name[END],
        DRAFTED: by_name[DRAFTING] * (1.0 + k * c),
        VERIFYING: by_name[VERIFYING],
        REST: by_name[REST],
    }
    titles = TITLES | _OWN_TITLES
    ordered = sorted(found.items(), key=lambda item: -abs(math.log(item[1])))
    return [{"name": name, "title": titles[name], "factor": value} for name, value in ordered]


def residual_cause(residual: float | None, factors: Sequence[Residual]) -> Residual | None:
    """The factor that does most for a residual of this sign; None where there is none."""
    if not residual:  # None, or exactly as predicted
        return None
    towards = [one for one in factors if (one["factor"] > 1.0) == (residual > 0.0)]
    return next(iter(towards), None)

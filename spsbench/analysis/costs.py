"""What a loop costs against K: a straight line through the SpS arms of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Milliseconds of a loop against K: a line for K from 1 on, and the ArS step at K = 0.

    Attributes:
        intercept_ms, slope_ms: of the line; the slope is one more drafted token, verified and all.
        r_squared: share of the variance between the arms that the line explains; None with two Ks.
        ks: the lookaheads that the line went through.
        ars_ms: of one ArS step; None without an ArS arm.
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


def loop_ms(row: dict[str, Any]) -> float | None:
    """Decoding time per loop of an arm, by the wall: ms/token times tokens per loop."""
    if row["ms_per_token"] is None or row["tokens_per_loop"] is None:
        return None
    return float(row["ms_per_token"] * row["tokens_per_loop"])


def loop_cost(group: Sequence[dict[str, Any]]) -> LoopCost | None:
    """The cost of a loop from the arms of one sampling and engine.

    Returns:
        None with fewer than two lookaheads above 0.
    """
    points = {int(row["k"]): loop_ms(row) for row in group if row["method"] == "sps"}
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


def draft_over_target(row: dict[str, Any], group: Sequence[dict[str, Any]]) -> tuple[float | None, str]:
    """c, the time of one draft run over that of one target run, and where it was measured.

    From the loops: drafting per drafted token over the verify phase of ArS. Where an engine sees no
    phases, from the draft alone against ArS, both whole.

    Args:
        row: an SpS arm's row of the summary.
        group: all rows of its sampling and engine.
    """
    ars = next((other for other in group if other["method"] == "ars"), None)
    draft = next((other for other in group if other["method"] == "draft"), None)
    drafting, target = _phase(row, "draft"), _phase(ars, "verify")
    drafted = row.get("drafted_per_loop") or row["k"]
    if drafting is not None and target and drafted:
        return drafting / drafted / target, "loops"
    if ars and draft and ars["ms_per_token"] and draft["ms_per_token"]:
        return draft["ms_per_token"] / ars["ms_per_token"], "draft alone"
    return None, "not measured"


def _phase(row: dict[str, Any] | None, name: str) -> float | None:
    times = (row or {}).get("loop_time")
    return None if times is None else times[f"{name}_ms"]

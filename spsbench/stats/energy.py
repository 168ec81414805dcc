"""Joules per token of each arm, and its share of what ArS takes.

What a sequence took includes its prefill: counters move too seldom to cut it off. So the counterpart among
the times is the end-to-end speedup. Ratios are of sums, as those of times, and so are their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.axes import identity
from spsbench.records import Interval
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.stats.processes import paired_speedup
from spsbench.stats.speedup import finished, unit_of
from spsbench.summary_types import ArmEnergy, ArmRow, Energy, RatioInterval

if TYPE_CHECKING:
    import pandas as pd


ENERGY = "energy_j"
"""The joules of a sequence among its conditions."""


def energy(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    info: Mapping[str, Any],
    *,
    trusted: bool,
    anytime: bool,
) -> Energy | None:
    """The energy of a run.

    Args:
        anytime: see ``paired_speedup``; joules per token then have no interval.
    """
    told = info.get("energy")
    if not told:
        return None
    counted = {arm: in_joules(part) for arm, part in by_arm.items()}
    counted = {arm: part for arm, part in counted.items() if float(part["decode_s"].sum()) > 0}
    arms = [_of(row, counted, trusted=trusted, anytime=anytime) for row in rows if row["arm"] in counted]
    return {
        "source": told["source"],
        "update_s": told["update_s"],
        "reason": told["reason"],
        "mean_sequence_s": _mean_sequence_s([by_arm[arm["arm"]] for arm in arms]),
        "arms": arms,
    }


def in_joules(samples: pd.DataFrame) -> pd.DataFrame:
    """The finished sequences whose energy is known, with joules in place of decoding seconds."""
    done = finished(samples)
    if "conditions" not in done:
        return done.iloc[:0]
    told = [found.get(ENERGY) if isinstance(found, Mapping) else None for found in done["conditions"]]
    joules = np.array([np.nan if value is None else value for value in told], dtype=np.float64)
    known = np.isfinite(joules)
    return done[known].assign(decode_s=joules[known], prefill_s=0.0)


def _of(row: ArmRow, counted: Mapping[str, pd.DataFrame], *, trusted: bool, anytime: bool) -> ArmEnergy:
    own, baseline = counted[row["arm"]], row["baseline"]
    one_process = "process" not in own or own["process"].nunique() < 2
    sums = own.groupby(unit_of(own), sort=False)[["decode_s", "new_tokens"]].sum()
    per_token = pooled_ratio(*(sums[name].to_numpy(dtype=np.float64) for name in sums))
    if not (trusted and one_process and not anytime):
        per_token = Interval(per_token.estimate, None, None)
    other = None if baseline is None else counted.get(baseline)
    return {
        **identity(row),
        "sequences": len(own),
        "joules_per_token": {"estimate": per_token.estimate, "low": per_token.low, "high": per_token.high},
        "baseline": baseline,
        "ratio": None if other is None else _ratio(own, other, trusted=trusted, anytime=anytime),
    }


def _ratio(
    own: pd.DataFrame, baseline: pd.DataFrame, *, trusted: bool, anytime: bool
) -> RatioInterval | None:
    """Joules per token of the arm over those of its baseline, paired by sequence."""
    found = paired_speedup(own, baseline, anytime=anytime)
    if found is None:
        return None
    low, high = (found.low, found.high) if trusted else (None, None)
    return {"ratio": found.ratio, "low": low, "high": high}


def _mean_sequence_s(parts: Sequence[pd.DataFrame]) -> float | None:
    """How long a sequence took, prefill included: a counter that moves as seldom says little of one."""
    done = [finished(part) for part in parts]
    count = sum(map(len, done))
    total = sum(float(part["prefill_s"].sum() + part["decode_s"].sum()) for part in done)
    return total / count if count else None

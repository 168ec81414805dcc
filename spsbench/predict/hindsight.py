"""What the right K in every loop, known afterwards, would have gained (the oracle).

Leviathan et al. 2022 speak of an oracle that knows in each loop how many tokens will pass; they put
its gain at up to about 60%. No sampler can be that oracle: this bounds how much a K that adapts could
be worth here at the very most, not what one would reach.

The oracle drafts exactly the tokens that were accepted in the arm with the largest K and pays for
them by the sweep's line of loop time against K. It cannot know what lies beyond that K, so the bound
holds for lookaheads up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.axes import FIXED, place, series, series_axes
from spsbench.predict.costs import LoopCost, loop_cost
from spsbench.predict.whatif import WhatIf
from spsbench.stats.speedup import column, pair, speedup
from spsbench.summary_types import AdaptiveGain, ArmRow, Hindsight

if TYPE_CHECKING:
    import pandas as pd


def hindsight(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[Hindsight] | None:
    """The bound for every sampling and engine with at least two Ks above 0.

    Returns:
        the share of loops that accepted all of ``max_k``; ``adaptive``: what each policy of the run
    """
    found: list[Hindsight] = []
    for group in series(rows):
        arms = [row for row in group if row["acceptance"] and row["arm"] in loops_by_arm]
        cost = loop_cost(group)
        if len({row["k"] for row in arms}) >= 2 and cost is not None:
            entry = _bound(arms, loops_by_arm, cost)
            if entry is not None:
                entry["adaptive"] = list(_adaptive(arms, rows, by_arm))
                found.append(entry)
    return found or None


def _adaptive(
    fixed: Sequence[ArmRow], rows: Sequence[ArmRow], by_arm: Mapping[str, pd.DataFrame]
) -> Iterator[AdaptiveGain]:
    """The arms that differ from those of fixed K in their policy alone."""
    timed = [row for row in fixed if row["ms_per_token"] is not None]
    best = min(timed, key=lambda row: row["ms_per_token"] or 0.0, default=None)
    if best is None:
        return
    for row in _adapting(best, rows):
        gain = speedup(pair(by_arm[best["arm"]], by_arm[row["arm"]])) if row["arm"] in by_arm else None
        if gain is not None and row["ms_per_token"] is not None:
            yield {
                "arm": row["arm"],
                "policy": str(row["policy"]),
                "fixed_k": best["k"],
                "ms_per_token": row["ms_per_token"],
                "gain": {"ratio": gain.ratio, "low": gain.low, "high": gain.high},
            }


def _adapting(fixed: ArmRow, rows: Sequence[ArmRow]) -> list[ArmRow]:
    """The arms that differ from one of fixed K in their policy alone."""
    common = place(fixed, "k", "policy")
    return [row for row in rows if row["policy"] not in (None, FIXED) and place(row, "k", "policy") == common]


def _bound(
    arms: Sequence[ArmRow], loops_by_arm: Mapping[str, pd.DataFrame], cost: LoopCost
) -> Hindsight | None:
    widest = max(arms, key=lambda row: row["k"])
    accepted = column(loops_by_arm[widest["arm"]], "accepted")
    lengths = {row["k"]: found["mean_acceptance_length"] for row in arms if (found := row["acceptance"])}
    if cost.intercept_ms <= 0 or cost.slope_ms < 0:
        return None  # the times are too noisy for a line
    step = float(cost.at(0))
    loop = WhatIf(lengths.__getitem__, lambda k: float(cost.at(k)) / step)
    best = loop.best_k(lengths)
    fixed = step / loop.speedup(best)
    # Where drafting never pays, the oracle does not draft.
    oracle = min(float(cost.at(accepted).sum() / (accepted + 1.0).sum()), fixed)
    return {
        **series_axes(widest),
        "best_k": best,
        "fixed_ms_per_token": fixed,
        "oracle_ms_per_token": oracle,
        "gain_bound": fixed / oracle,
        "max_k": widest["k"],
        "censored": float(np.mean(accepted >= widest["k"])),
        "adaptive": [],
    }

"""A bound: what the right K in every loop, known afterwards, would have gained over the best fixed K.

Leviathan et al. 2022 speak of an oracle that knows in each loop how many tokens will pass; they put
its gain at up to about 60%. No sampler can be that oracle: this tells how much a K that adapts could
be worth here at the very most, not what one would reach.

The oracle drafts exactly the tokens that were accepted in the arm with the largest K and pays for
them by the sweep's line of loop time against K. It cannot know what lies beyond that K, so the bound
holds for lookaheads up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.analysis.costs import LoopCost, loop_cost
from spsbench.analysis.matched import column
from spsbench.axes import axes, series

if TYPE_CHECKING:
    import pandas as pd


def hindsight(
    loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """The bound for every sampling and engine with at least two Ks above 0.

    Returns:
        per sampling ``best_k`` (the best fixed one by the cost model; 0 is ArS), ``fixed_ms_per_token``,
        ``oracle_ms_per_token``, ``gain_bound`` (their ratio, at least 1), ``max_k`` and ``censored``,
        the share of loops that accepted all of ``max_k``. None without such a sweep.
    """
    found = []
    for group in series(rows):
        arms = [row for row in group if row["acceptance"] and row["arm"] in loops_by_arm]
        cost = loop_cost(group)
        if len({row["k"] for row in arms}) >= 2 and cost is not None:
            entry = _bound(arms, loops_by_arm, cost)
            if entry is not None:
                found.append(entry)
    return found or None


def _bound(
    arms: Sequence[dict[str, Any]], loops_by_arm: Mapping[str, pd.DataFrame], cost: LoopCost
) -> dict[str, Any] | None:
    widest = max(arms, key=lambda row: row["k"])
    accepted = column(loops_by_arm[widest["arm"]], "accepted")
    per_token = {
        row["k"]: float(cost.at(row["k"])) / row["acceptance"]["mean_acceptance_length"] for row in arms
    }
    per_token[0] = float(cost.at(0))
    if cost.intercept_ms <= 0 or cost.slope_ms < 0:
        return None  # the times are too noisy for a line
    best = min(per_token, key=per_token.__getitem__)
    # Where drafting never pays, the oracle does not draft.
    oracle = min(float(cost.at(accepted).sum() / (accepted + 1.0).sum()), per_token[best])
    return {
        **{name: value for name, value in axes(widest).items() if name != "k"},
        "best_k": int(best),
        "fixed_ms_per_token": per_token[best],
        "oracle_ms_per_token": oracle,
        "gain_bound": per_token[best] / oracle,
        "max_k": int(widest["k"]),
        "censored": float(np.mean(accepted >= widest["k"])),
    }

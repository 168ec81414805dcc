"""Acceptance under each of its names.

The field prints at least ten different numbers as "the acceptance rate". Each is computed here
under its own name, from the loop records of one arm, so that a figure can be compared with a
paper's or a server's. ``accepted`` is taken before truncation: emitted tokens per loop would
understate the length, and so would leaving out last loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.errors import SpsbenchError
from spsbench.base.records import Interval
from spsbench.law.theory import alpha_iid
from spsbench.stats.bootstrap import plain, pooled_ratio
from spsbench.stats.messages import LEGEND
from spsbench.stats.speedup import column, conversation_of
from spsbench.store.summary_types import Acceptance, AcceptanceNames, RatioInterval

if TYPE_CHECKING:
    import pandas as pd


PER_POSITION = ("acceptance_per_position", "conditional_acceptance")


def acceptance_by_name(loops: pd.DataFrame, k: int) -> Acceptance | None:
    """Return all names of acceptance from the loops of one SpS arm.

    The names stand pooled over all loops (micro); ``macro`` holds them as means over prompts. The
    macro ``alpha_iid`` is solved from the macro length. ``alpha_leviathan`` needs another pass of
    the models and is None here. Per-position lists run over j = 1..K.

    Where loops draft fewer than K (adaptive K, or a drafter that found nothing), K is the most: ``r_prime``
    is the share of what K tokens could have given, not of what was drafted; ``acceptance_per_position``
    is of all loops, so that it falls where drafts end too; ``conditional_acceptance`` and both alphas are
    of the positions that were tested, which a policy chose; and ``alpha_iid`` describes nothing, since it
    is solved for K tests in every loop.
    """
    if k < 1 or loops.empty or loops["accepted"].isna().any():
        return None
    counts = _sums_by_prompt(loops, k)
    micro = {
        name: value[0]
        for name, value in _ratios(
            {name: each.sum(axis=0, keepdims=True) for name, each in counts.items()}, k
        ).items()
    }
    # Over the prompts for which a name exists: one may never reach position j.
    macro = {name: _mean(value) for name, value in _ratios(counts, k).items()}
    return {**_in_legend_order(micro, k), "macro": _in_legend_order(macro, k)}


def mean_length(loops: pd.DataFrame) -> Interval | None:
    """Return ``mean_acceptance_length`` with its 95% interval over prompts; None without counts."""
    if loops.empty or loops["accepted"].isna().any():
        return None
    prompts = loops.groupby(conversation_of(loops), sort=False)["accepted"].agg(["sum", "size"])
    counts = prompts["size"].to_numpy(np.float64)
    return pooled_ratio(prompts["sum"].to_numpy(np.float64) + counts, counts)


def share_of_optimum(loops: pd.DataFrame) -> RatioInterval | None:
    """Return accepted tokens over those that the best lossless rule expects of the same drafts, pooled.

    With its 95% interval over prompts; None unless every loop has both, and where the optimum is 0. Above 1
    by chance and under lossy rules.
    """
    names = ["accepted", "optimal_accepted"]
    if not set(names) <= set(loops) or loops.empty or loops[names].isna().any(axis=None):
        return None
    accepted, optimum = loops.groupby(conversation_of(loops), sort=False)[names].sum().to_numpy(np.float64).T
    if not optimum.sum():
        return None
    ratio = pooled_ratio(accepted, optimum)
    return {"ratio": ratio.estimate, "low": ratio.low, "high": ratio.high}


def disagreement(loops: pd.DataFrame) -> float | None:
    """Return standard errors between the accepted tokens and their expectation, the sum of beta.

    Given the past, a test passes with probability beta, so accepted - beta sums to a martingale
    with variance sum beta (1 - beta), at most n alpha (1 - alpha). That bound makes the score
    conservative: beyond 4 in magnitude, the recorded acceptance is not that of the rule. It is of the loops
    whose beta is known, so that one without it hides nothing of the others.
    """
    known = np.isfinite(column(loops, "beta_sum"))
    tested, beta, accepted = (column(loops, name)[known].sum() for name in ("tested", "beta_sum", "accepted"))
    if not tested:
        return None
    mean = min(max(beta / tested, 0.0), 1.0)
    # The 1 keeps greedy arms (every beta 0 or 1, variance 0) from alarming on a float's last digit.
    return float((accepted - beta) / np.sqrt(tested * mean * (1.0 - mean) + 1.0))


def _sums_by_prompt(loops: pd.DataFrame, k: int) -> dict[str, Floats]:
    """[prompts], or [prompts, K+1] loops with exactly j tokens."""
    import pandas as pd

    groups, ids = pd.factorize(conversation_of(loops))
    n = len(ids)

    def total(values: Floats) -> Floats:
        return np.bincount(groups, weights=values, minlength=n).astype(np.float64)

    def spread(values: Floats) -> Floats:
        if np.isnan(values).any():
            return np.full((n, k + 1), np.nan)
        if values.max() > k or values.min() < 0:
            remedy = "The run directory is damaged."
            raise SpsbenchError(f"A loop record does not fit K = {k}.", remedy=remedy)
        cells = groups * (k + 1) + values.astype(np.int64)
        return np.bincount(cells, minlength=n * (k + 1)).reshape(n, k + 1).astype(np.float64)

    names = ("accepted", "tested", "emitted", "beta_sum")
    drafted = loops["drafted"] if "nodes" not in loops else loops["nodes"].fillna(loops["drafted"])
    return {
        "loops": total(np.ones(len(loops))),
        "drafted": total(drafted.to_numpy(np.float64)),
        **{name: total(column(loops, name)) for name in names},
        **{f"{name}_at": spread(column(loops, name)) for name in ("accepted", "tested")},
    }


def _at_least(spread: Floats) -> Floats:
    """[groups, K] loops with at least j tokens, j = 1..K, from [groups, K+1] loops with exactly j."""
    return np.cumsum(spread[:, ::-1], axis=1)[:, ::-1][:, 1:]


def _ratios(counts: Mapping[str, Floats], k: int) -> dict[str, Floats]:
    """[groups], or [groups, K] by position; NaN where one does not exist."""
    joint, tried = _at_least(counts["accepted_at"]), _at_least(counts["tested_at"])
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "r_prime": (counts["accepted"] + counts["loops"]) / (counts["loops"] * (k + 1)),
            "mean_acceptance_length": 1.0 + counts["accepted"] / counts["loops"],
            "draft_acceptance_rate": counts["accepted"] / counts["drafted"],
            "acceptance_per_position": joint / counts["loops"][:, None],
            "conditional_acceptance": joint / tried,
            "alpha_tested": counts["accepted"] / counts["tested"],
            "alpha_beta": counts["beta_sum"] / counts["tested"],
            "tokens_per_target_call": counts["emitted"] / counts["loops"],
        }


def _in_legend_order(values: Mapping[str, Any], k: int) -> AcceptanceNames:
    """With the two alphas that are not ratios of sums."""
    known: dict[str, Any] = plain({**values})
    known |= {"alpha_leviathan": None, "alpha_iid": alpha_iid(known["mean_acceptance_length"], k)}
    return cast("AcceptanceNames", {name: known[name] for name in LEGEND})


def _mean(values: Floats) -> Floats:
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(there, values, 0.0).sum(axis=0) / there.sum(axis=0)
    return mean

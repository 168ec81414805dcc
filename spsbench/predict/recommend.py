"""Which K, and what the right K in every loop, known afterwards, would have gained (the oracle).

Leviathan et al. 2022 speak of an oracle that knows in each loop how many tokens will pass; they put
its gain at up to about 60%. No sampler can be that oracle: this tells how much a K that adapts could
be worth here at the very most, not what one would reach.

The oracle drafts exactly the tokens that were accepted in the arm with the largest K and pays for
them by the sweep's line of loop time against K. It cannot know what lies beyond that K, so the bound
holds for lookaheads up to it.

A K that is chosen and judged on the same prompts looks better than it is (the winner's curse). The
halves are drawn by seed. On the judging half the chosen K is set against ArS and against every other
K by paired differences of time per token, since intervals that overlap decide nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spsbench.axes import FIXED, place, series, series_axes, unusual
from spsbench.predict.costs import LoopCost, loop_cost
from spsbench.predict.whatif import WhatIf
from spsbench.stats.bootstrap import pooled_interval, ratio
from spsbench.stats.speedup import column, finished, pair, speedup
from spsbench.summary_types import (
    AdaptiveGain,
    Alternative,
    ArmRow,
    ChosenK,
    ComparedTails,
    Hindsight,
    RatioInterval,
    Recommendation,
    TailSeconds,
)

if TYPE_CHECKING:
    import pandas as pd


def hindsight(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> list[Hindsight] | None:
    """The bound for every sampling and engine with at least two Ks above 0.

    Returns:
        per sampling ``best_k`` (the best fixed one by the cost model; 0 is ArS), ``fixed_ms_per_token``,
        ``oracle_ms_per_token``, ``gain_bound`` (their ratio, at least 1), ``max_k`` and ``censored``,
        the share of loops that accepted all of ``max_k``; ``adaptive``: what each policy of the run
        reached against the fastest fixed K, both measured, paired by prompt. None without such a sweep.
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


Floats = npt.NDArray[np.float64]

FEWEST_PROMPTS = 8
"""With fewer nothing is recommended: each half judges on too little."""

_SPLIT_SEED = b"spsbench recommendation 1"


def recommendation(by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[Recommendation] | None:
    """A K for every sampling and engine of a sweep.

    Returns:
        per sampling ``k`` (0: ArS), ``chosen_on`` and ``judged_on`` (prompts), ``speedup`` over ArS on
        the judging half (None for ArS itself), ``alternatives`` (per other K ``difference_ms``: its
        time per token minus the chosen one's, with ``low``, ``high`` and whether it is ``worse``),
        ``tail_s`` (P90 and P99 of a sequence, chosen and ArS, judging half) and ``sentence``. None with
        fewer than two Ks or than ``FEWEST_PROMPTS`` prompts.
    """
    found: list[Recommendation] = []
    for group in series(rows):
        if not all(row.get("lossless", True) for row in group):
            continue  # its speed is bought with another distribution
        if any(row.get("paired_waves") is not None for row in group):
            continue  # waves are too few to choose on some and judge on others
        arms = {row["k"]: row["arm"] for row in group if row["method"] in ("ars", "sps")}
        tables = {k: _per_prompt(by_arm[arm]) for k, arm in sorted(arms.items()) if arm in by_arm}
        tables = {k: table for k, table in tables.items() if len(table)}
        if len([k for k in tables if k > 0]) >= 2:
            entry = _recommend(tables, {k: finished(by_arm[arms[k]]) for k in tables})
            if entry is not None:
                first = next(row for row in group if row["method"] == "sps")
                sentence = _sentence(_what(first, rows), entry)
                found.append({**series_axes(first), **entry, "sentence": sentence})
    return found or None


def _what(first: ArmRow, rows: Sequence[ArmRow]) -> str:
    """What a K is recommended for; that it is fixed is said where an arm beside it adapts K."""
    return ", ".join([first["sampling"], *unusual(first), *(["fixed K"] if _adapting(first, rows) else [])])


def _per_prompt(samples: pd.DataFrame) -> pd.DataFrame:
    """Seconds and tokens by example_id."""
    done = finished(samples)
    return done.groupby("example_id", sort=False)[["decode_s", "new_tokens"]].sum()


def _recommend(tables: Mapping[int, pd.DataFrame], samples: Mapping[int, pd.DataFrame]) -> ChosenK | None:
    common = set.intersection(*(set(table.index) for table in tables.values()))
    if len(common) < FEWEST_PROMPTS:
        return None
    choosing, judging = halves(common)
    speed = {k: _per_token(table.loc[choosing]) for k, table in tables.items()}
    chosen = min(speed, key=lambda k: (speed[k], k))
    judged = {k: table.loc[judging].to_numpy(dtype=np.float64).T for k, table in tables.items()}
    others = [_against(k, judged[k], judged[chosen]) for k in judged if k != chosen]
    tails: ComparedTails = {"chosen": _tail(samples[chosen], judging)}
    if 0 in samples:
        tails["ars"] = _tail(samples[0], judging)
    return {
        "k": chosen,
        "chosen_on": len(choosing),
        "judged_on": len(judging),
        "speedup": _speedup(judged.get(0), judged[chosen]) if chosen else None,
        "alternatives": others,
        "tail_s": tails,
    }


def halves(examples: Iterable[str]) -> tuple[list[str], list[str]]:
    """Prompts to choose on and prompts to judge on, by their names and a seed alone."""
    ordered = sorted(examples, key=_lot)
    return ordered[::2], ordered[1::2]


def _lot(example: str) -> bytes:
    """The prompt's place in a shuffle that depends on its name and the seed alone."""
    return hashlib.sha256(_SPLIT_SEED + str(example).encode("utf-8", "replace")).digest()


def _per_token(table: pd.DataFrame) -> float:
    return float(table["decode_s"].sum() / table["new_tokens"].sum())


def _against(k: int, other: Floats, chosen: Floats) -> Alternative:
    """What another K takes longer per token, in ms, paired by prompt."""
    low, high = pooled_interval([*other, *chosen], _difference_ms)
    difference = float(_difference_ms(np.concatenate([other, chosen]).sum(axis=1, keepdims=True))[0])
    return {"k": k, "difference_ms": difference, "low": low, "high": high, "worse": bool(low and low > 0)}


def _difference_ms(sums: Floats) -> Floats:
    return np.asarray(1e3 * (sums[0] / sums[1] - sums[2] / sums[3]))


def _speedup(ars: Floats | None, chosen: Floats) -> RatioInterval | None:
    if ars is None:
        return None
    found = ratio(*(float(a[0].sum() / a[1].sum()) for a in (ars, chosen)))
    if found is None:
        return None
    low, high = pooled_interval([*ars, *chosen], _ratio)
    return {"ratio": found, "low": low, "high": high}


def _ratio(sums: Floats) -> Floats:
    return np.asarray(sums[0] / sums[1] / (sums[2] / sums[3]))


def _tail(samples: pd.DataFrame, prompts: Sequence[str]) -> TailSeconds:
    seconds = samples.loc[samples["example_id"].isin(prompts), "decode_s"].to_numpy(dtype=np.float64)
    return {"p90": float(np.quantile(seconds, 0.9)), "p99": float(np.quantile(seconds, 0.99))}


def _sentence(sampling: str, entry: ChosenK) -> str:
    if entry["k"] == 0:
        return (
            f"Recommended for {sampling}: ArS; no K was faster on the {entry['chosen_on']} choosing prompts."
        )
    text = f"Recommended for {sampling}: K={entry['k']}"
    speedup = entry["speedup"]
    if speedup is not None:
        interval = "" if speedup["low"] is None else f" [{speedup['low']:.2f}, {speedup['high']:.2f}]"
        measured = f"{speedup['ratio']:.2f}x{interval} on {entry['judged_on']} other prompts"
        if speedup["low"] is not None and speedup["low"] <= 1.0:
            return (
                f"No K is recommended for {sampling}: K={entry['k']}, the fastest on "
                f"{entry['chosen_on']} prompts, gave {measured}.{_tail_words(entry['tail_s'])}"
            )
        text += f", {measured}"
    close = [str(other["k"]) for other in entry["alternatives"] if other["k"] and not other["worse"]]
    text += f"; K={', '.join(close)} not clearly slower" if close else "; every other K is clearly slower"
    return f"{text}.{_tail_words(entry['tail_s'])}"


def _tail_words(tail: ComparedTails) -> str:
    if "ars" not in tail:
        return ""
    ours, ars = tail["chosen"], tail["ars"]
    p90 = f"P90 {ours['p90']:.2f} s (ArS {ars['p90']:.2f} s)"
    p99 = f"P99 {ours['p99']:.2f} s (ArS {ars['p99']:.2f} s)"
    warning = " The slowest sequences gain nothing." if ours["p99"] >= ars["p99"] else ""
    return f" {p90}, {p99}.{warning}"

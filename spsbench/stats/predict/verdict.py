"""Does speculation pay here, and with which arm: one verdict for every sampling and batch size.

The arm is the fastest of the table, so that a verdict never contradicts it. Its speedup is measured on the
prompts that it was chosen on, which flatters it (the winner's curse). Where there are several arms, choosing
is therefore measured too: the fastest arm of one half of the prompts is timed on the other half, and the
other way round. The halves are drawn by seed. An arm pays only if both intervals lie above 1.

Arms are compared with the fastest by paired ratios, since intervals that overlap decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import numpy as np

from spsbench.base.axes import axes, identity
from spsbench.stats.certainty import Certainty, time_half_width, with_error
from spsbench.stats.predict import FEWEST_PROMPTS
from spsbench.stats.speedup import PairedTimes, finished, shown, speedup_over_prompts
from spsbench.store.summary_types import (
    AgainstBest,
    ArmFactors,
    ArmRow,
    ChosenElsewhere,
    Outcome,
    RatioInterval,
    SpeedVerdict,
)

if TYPE_CHECKING:
    import pandas as pd


def halves(examples: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return two halves of the prompts, shuffled by their names and a seed alone."""
    seed = b"spsbench recommendation 1"
    ordered = sorted(examples, key=lambda name: sha256(seed + str(name).encode("utf-8", "replace")).digest())
    return ordered[::2], ordered[1::2]


def verdicts(
    by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[ArmRow],
    why: Sequence[ArmFactors] | None,
    certainty: Certainty,
    *,
    alarmed: Collection[str] = (),
) -> list[SpeedVerdict] | None:
    """Return the verdict of every sampling and batch size in which a lossless SpS arm has a speedup."""
    factors = {entry["arm"]: entry for entry in why or ()}
    grounds = dict.fromkeys(_common_axes(row) for row in rows)
    results = []
    for ground in grounds:
        here = [row for row in rows if _common_axes(row) == ground and row["arm"] in by_arm]
        arms = [row for row in here if row["arm"] not in alarmed]
        timed = [
            (row, row["speedup"]) for row in arms if row["method"] == "sps" and row.get("lossless", True)
        ]
        rated = {row["arm"]: ratio for row, ratio in timed if ratio is not None}
        if rated:
            best = max(rated, key=lambda arm: rated[arm]["ratio"])
            results.append(_verdict(best, rated, arms, by_arm, factors.get(best), certainty))
    return results or None


def _common_axes(row: ArmRow) -> tuple[str, int]:
    """Those that arms must share to be compared with one baseline."""
    place = axes(row)
    return place["sampling"], place["batch"]


def _verdict(
    name: str,
    rated: Mapping[str, RatioInterval],
    arms: Sequence[ArmRow],
    by_arm: Mapping[str, pd.DataFrame],
    factors: ArmFactors | None,
    certainty: Certainty,
) -> SpeedVerdict:
    """On one sampling and batch size: the best arm against ArS and the other arms."""
    best = next(row for row in arms if row["arm"] == name)
    ars = str(best["baseline"])
    others = [row for row in arms if row["arm"] in rated and row["arm"] != name]
    elsewhere, anytime = None, certainty.anytime
    if others and not anytime and best.get("paired_waves") is None:  # waves are too few to be halved
        elsewhere = _chosen_elsewhere(ars, {arm: by_arm[arm] for arm in (ars, *rated)}, certainty)
    few = bool(others) and not anytime and (best["paired_prompts"] or 0) < FEWEST_PROMPTS
    outcome = "unclear" if few else _outcome(rated[name], elsewhere)
    result = {
        **identity(best),
        "outcome": outcome,
        "candidates": len(rated),
        "prompts": int(best["paired_prompts"] or 0),
        "speedup": rated[name],
        "end_to_end": best["end_to_end_speedup"],
        "others": [_gain_of_fastest(row, by_arm[row["arm"]], by_arm[name], certainty) for row in others],
        "elsewhere": elsewhere,
        "binding": None if factors is None else factors["binding"],
        "break_even": None if factors is None else factors["break_even"],
        "tail_s": {"chosen": _tail(by_arm[name]), "ars": _tail(by_arm[ars])},
    }
    if lost := max(certainty.lost.get(ars, 0.0), certainty.lost.get(name, 0.0)):
        result["lost_share"] = lost
        plain = shown(certainty.without_contention(by_arm[ars], by_arm[name]))
        if outcome == "unclear" and not few and plain is not None and plain["low"] is not None:
            result["leaning"] = _outcome(plain, None)
    return cast("SpeedVerdict", result)


def _outcome(measured: RatioInterval, elsewhere: ChosenElsewhere | None) -> Outcome:
    low, high = measured["low"], measured["high"]
    if low is None or high is None:
        return "unclear"
    if high < 1.0:
        return "does not pay"
    if elsewhere is not None and (elsewhere["low"] is None or elsewhere["low"] <= 1.0):
        return "unclear"
    return "pays" if low > 1.0 else "unclear"


def _gain_of_fastest(
    other: ArmRow, samples: pd.DataFrame, fastest: pd.DataFrame, certainty: Certainty
) -> AgainstBest:
    """Over another arm, paired."""
    gain = certainty.speedup(samples, fastest)
    slower = gain is not None and gain["low"] is not None and gain["low"] > 1.0
    return {**identity(other), "gain": gain, "slower": slower}


def _chosen_elsewhere(
    ars: str, samples: Mapping[str, pd.DataFrame], certainty: Certainty
) -> ChosenElsewhere | None:
    """What choosing an arm on one half of the prompts gave on the other half, both ways, over ArS.

    ArS is one of the arms that may be chosen, first where it is as fast as another.
    """
    tables = {
        arm: finished(part).groupby("example_id", sort=False)[["decode_s", "new_tokens"]].sum()
        for arm, part in samples.items()
    }
    common = set.intersection(*(set(table.index) for table in tables.values()))
    if len(common) < FEWEST_PROMPTS:
        return None
    parts, picked = [], set()
    one, other = halves(common)
    for choosing, judging in ((one, other), (other, one)):
        chosen = min(tables, key=lambda arm: _per_token(tables[arm].loc[choosing]))
        picked.add(chosen)
        judged = (tables[arm].loc[judging].to_numpy(dtype=np.float64).T for arm in (ars, chosen))
        parts.append(np.concatenate([*judged]))
    speedup = speedup_over_prompts(PairedTimes(*np.concatenate(parts, axis=1)))
    if speedup is None:
        return None
    if others := picked - {ars}:  # of two arms the wider error, and the one that lost more
        widths = [time_half_width(samples[ars], samples[arm]) for arm in others if certainty.over_time]
        lost_most = max(others, key=lambda arm: certainty.lost.get(arm, 0.0))
        speedup = certainty.with_contention(with_error(speedup, max(widths, default=0.0)), ars, lost_most)
    return {"ratio": speedup.ratio, "low": speedup.low, "high": speedup.high, "prompts": len(common)}


def _per_token(table: pd.DataFrame) -> float:
    return float(table["decode_s"].sum() / table["new_tokens"].sum())


def _tail(samples: pd.DataFrame) -> dict[str, float]:
    p90, p99 = np.quantile(finished(samples)["decode_s"].to_numpy(dtype=np.float64), [0.9, 0.99])
    return {"p90": float(p90), "p99": float(p99)}

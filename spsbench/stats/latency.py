"""The tail, by K and by position in the output: how long slow sequences take, and where; and joules.

Chen et al. 2023 warn that a larger K makes latency vary more. Sequences end where they end, so the
time of a whole one mixes speed with length; the time until a fixed number of tokens is out does not.
It is taken at the end of the loop that brings the N-th token, from sequences that have so many, and
never extrapolated from shorter ones.

Acceptance by position within a draft stands under ``acceptance_per_position`` (joint) and
``conditional_acceptance``; here a loop is filed under the output position at which it begins.

The energy of a sequence includes its prefill: counters move too seldom to cut it off. So its counterpart
among the times is the end-to-end speedup. Ratios are of sums, as those of times, and so are their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base.arrays import Floats, Ints
from spsbench.base.axes import identity
from spsbench.base.records import Speedup
from spsbench.stats.anytime import paired_speedup
from spsbench.stats.bootstrap import pooled_ratio, ratio
from spsbench.stats.certainty import Certainty
from spsbench.stats.speedup import column, finished, shown, unit_of
from spsbench.store.summary_types import ArmEnergy, ArmPositions, ArmRow, ArmTails, Energy, PositionBin, Tails

if TYPE_CHECKING:
    import pandas as pd


FEWEST_FOR_P99 = 100
"""Below so many sequences P99 is little more than the slowest of them."""

_SHARE_LONG_ENOUGH = 0.75


def tails(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> Tails | None:
    """Return quantiles of latency of every arm.

    ``until_n_s`` are seconds until the N-th token, and ``paper_clock_s`` those where every loop is given the
    arm's mean loop time, as in Figure 1 of Chen et al. 2023.
    """
    done = {row["arm"]: finished(by_arm[row["arm"]]) for row in rows if row["arm"] in by_arm}
    done = {arm: samples for arm, samples in done.items() if len(samples)}
    if not done:
        return None
    lengths = np.concatenate([column(samples, "new_tokens") for samples in done.values()])
    n = int(np.quantile(lengths, 1.0 - _SHARE_LONG_ENOUGH, method="lower"))
    arms: list[ArmTails] = []
    for row in (row for row in rows if row["arm"] in done):
        samples = done[row["arm"]]
        # Loops of a batch have shares of seconds, and what passed between them is of other rows.
        reached = _seconds_until(loops_by_arm.get(row["arm"]), n) if row.get("batch", 1) == 1 else None
        seconds, clock = (None, None) if reached is None else reached
        arms.append(
            {
                **identity(row),
                "sequence_s": _spread(sequence_s(samples)),
                "until_n_s": _spread(seconds),
                "sequences_with_n": 0 if seconds is None else len(seconds),
                "paper_clock_s": _spread(clock, quantiles=False),
                "p99_rests_on_few": len(samples) < FEWEST_FOR_P99,
                "share_slower": row["share_slower"],
            }
        )
    return {"n_tokens": n, "fixed_length": bool((lengths == lengths[0]).all()), "arms": arms}


def sequence_s(samples: pd.DataFrame) -> Floats:
    """Return the seconds that a sequence took; in a batch all that passed, not its share."""
    decode_s = column(samples, "decode_s")
    if "latency_s" not in samples:
        return decode_s
    passed = column(samples, "latency_s")
    return np.where(np.isnan(passed), decode_s, passed)


def _seconds_until(loops: pd.DataFrame | None, n: int) -> tuple[Floats, Floats] | None:
    """Until the n-th token of each sequence that has one, by the clock and by the paper's."""
    code = None if loops is None or loops.empty else sequence_codes(loops)
    if loops is None or code is None or np.isnan(seconds := column(loops, "loop_s")).any():
        return None
    emitted = column(loops, "emitted")
    needed = running(emitted, code) - emitted < n
    enough = np.bincount(code, weights=emitted) >= n
    loops_taken, spent = (
        np.bincount(code, weights=each)[enough].astype(np.float64) for each in (needed, seconds * needed)
    )
    return spent, loops_taken * float(seconds.mean())


def sequence_codes(loops: pd.DataFrame) -> Ints | None:
    """Return the number of the sequence that each loop belongs to; None unless sequences are in order."""
    if "loop" not in loops:
        return None
    first = column(loops, "loop") == 0
    return np.cumsum(first) - 1 if len(first) and first[0] else None


def running(values: Floats, code: Ints) -> Floats:
    """Return a cumulative sum that restarts with every sequence."""
    total = np.cumsum(values)
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    offsets = total[starts] - values[starts]
    return np.asarray(total - offsets[code])


def _spread(seconds: Floats | None, *, quantiles: bool = True) -> dict[str, float] | None:
    if seconds is None or not len(seconds):
        return None
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99} if quantiles else {}
    return {
        **{name: float(np.quantile(seconds, share)) for name, share in shares.items()},
        "mean": float(seconds.mean()),
        "sd": float(seconds.std(ddof=1)) if len(seconds) > 1 else 0.0,
    }


EDGES = (0, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bins of output positions, each up to the next; the last has no end."""


def positions(loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[ArmPositions] | None:
    """Return the acceptance of every SpS arm by where in the output the loop began."""
    by_arm: list[ArmPositions] = []
    for row in rows:
        loops = loops_by_arm.get(row["arm"])
        if not row["acceptance"] or loops is None:
            continue
        if bins := _acceptance_by_start(loops):
            by_arm.append({**identity(row), "bins": bins})
    return by_arm or None


def _acceptance_by_start(loops: pd.DataFrame) -> list[PositionBin]:
    code = sequence_codes(loops)
    if code is None:
        return []
    emitted = column(loops, "emitted")
    place = np.digitize(running(emitted, code) - emitted, EDGES) - 1

    def total(values: Floats) -> Floats:
        return np.bincount(place, weights=values, minlength=len(EDGES)).astype(np.float64)

    count = total(np.ones(len(loops)))
    accepted, tested, beta = (total(column(loops, name)) for name in ("accepted", "tested", "beta_sum"))
    return [
        {
            "start": start,
            "end": EDGES[index + 1] if index + 1 < len(EDGES) else None,
            "loops": int(count[index]),
            "alpha_tested": ratio(accepted[index], tested[index]),
            "alpha_beta": ratio(beta[index], tested[index]),
            "mean_acceptance_length": 1.0 + accepted[index] / count[index],
        }
        for index, start in enumerate(EDGES)
        if count[index]
    ]


ENERGY = "energy_j"
"""The joules of a sequence among its conditions."""


def energy(
    by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow], info: Mapping[str, Any], certainty: Certainty
) -> Energy | None:
    """The energy of a run; joules per token have no interval where ``anytime``, see ``paired_speedup``."""
    counter = info.get("energy")
    if not counter:
        return None
    counted = {arm: in_joules(part) for arm, part in by_arm.items()}
    counted = {arm: part for arm, part in counted.items() if float(part["decode_s"].sum()) > 0}
    arms = [_arm_energy(row, counted, certainty) for row in rows if row["arm"] in counted]
    # A counter that moves as seldom as a sequence ends says little of one.
    timed = [finished(by_arm[arm["arm"]]) for arm in arms]
    count = sum(map(len, timed))
    total_s = sum(float(part["prefill_s"].sum() + part["decode_s"].sum()) for part in timed)
    return {
        "source": counter["source"],
        "update_s": counter["update_s"],
        "reason": counter["reason"],
        "mean_sequence_s": total_s / count if count else None,
        "arms": arms,
    }


def in_joules(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the finished sequences whose energy is known, with joules in place of decoding seconds."""
    done = finished(samples)
    if "conditions" not in done:
        return done.iloc[:0]
    spent = [
        conditions.get(ENERGY) if isinstance(conditions, Mapping) else None
        for conditions in done["conditions"]
    ]
    joules = np.array([np.nan if value is None else value for value in spent], dtype=np.float64)
    known = np.isfinite(joules)
    return done[known].assign(decode_s=joules[known], prefill_s=0.0)


def _arm_energy(row: ArmRow, counted: Mapping[str, pd.DataFrame], certainty: Certainty) -> ArmEnergy:
    arm_joules, baseline = counted[row["arm"]], row["baseline"]
    one_process = "process" not in arm_joules or arm_joules["process"].nunique() < 2
    sums = arm_joules.groupby(unit_of(arm_joules), sort=False)[["decode_s", "new_tokens"]].sum()
    per_token = pooled_ratio(*sums.to_numpy(dtype=np.float64).T)
    known = certainty.clean and one_process and not certainty.anytime
    other = counted.get(baseline or "")
    # Joules per token of the arm over those of its baseline, paired by sequence.
    saving = None if other is None else paired_speedup(arm_joules, other, anytime=certainty.anytime)
    if saving is not None and not certainty.clean:  # others draw energy, too
        saving = Speedup(saving.ratio, None, None)
    return {
        **identity(row),
        "sequences": len(arm_joules),
        "joules_per_token": {
            "estimate": per_token.estimate,
            "low": per_token.low if known else None,
            "high": per_token.high if known else None,
        },
        "baseline": baseline,
        "ratio": shown(saving),
    }

"""The tail, by K and by position in the output: how long the slow sequences take, and where.

Chen et al. 2023 warn that a larger K makes latency vary more. Sequences end where they end, so the
time of a whole one mixes speed with length; the time until a fixed number of tokens is out does not.
It is taken at the end of the loop that brings the N-th token, from sequences that have so many, and
never extrapolated from shorter ones.

Acceptance by position within a draft stands under ``acceptance_per_position`` (joint) and
``conditional_acceptance``; here a loop is filed under the output position at which it begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spsbench.axes import axes, identity
from spsbench.stats.bootstrap import ratio
from spsbench.stats.speedup import column, finished
from spsbench.summary_types import ArmPositions, ArmRow, ArmTails, MeanSd, PositionBin, Spread, Tails

if TYPE_CHECKING:
    import pandas as pd


Floats = npt.NDArray[np.float64]

FEWEST_FOR_P99 = 100
"""Below so many sequences P99 is little more than the slowest of them."""

_SHARE_LONG_ENOUGH = 0.75


def tails(
    by_arm: Mapping[str, pd.DataFrame], loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]
) -> Tails | None:
    """Quantiles of latency of every arm.

    Returns:
        and ``sd`` of seconds), ``sequences_with_n``, ``paper_clock_s`` (mean and sd when every loop
        is given the arm's mean loop time, as in Figure 1 of Chen et al. 2023), ``p99_rests_on_few``
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
        alone = axes(row)["batch"] == 1
        reached = _until(loops_by_arm.get(row["arm"]), samples, n) if alone else None
        arms.append(
            {
                **identity(row),
                "sequence_s": _spread(sequence_s(samples)),
                "until_n_s": None if reached is None else _spread(reached["seconds"]),
                "sequences_with_n": 0 if reached is None else len(reached["seconds"]),
                "paper_clock_s": None if reached is None else _paper_clock(reached),
                "p99_rests_on_few": len(samples) < FEWEST_FOR_P99,
                "share_slower": row["share_slower"],
            }
        )
    return {"n_tokens": n, "fixed_length": bool((lengths == lengths[0]).all()), "arms": arms}


def sequence_s(samples: pd.DataFrame) -> Floats:
    """Seconds that a sequence took; in a batch not its share of them, but all that passed."""
    own = column(samples, "decode_s")
    if "latency_s" not in samples:
        return own
    passed = column(samples, "latency_s")
    return np.where(np.isnan(passed), own, passed)


def _until(loops: pd.DataFrame | None, samples: pd.DataFrame, n: int) -> dict[str, Floats] | None:
    """Seconds and loops until the n-th token, by sequence, and the arm's mean loop time."""
    if loops is None or loops.empty or np.isnan(column(loops, "loop_s")).any():
        return None
    code = sequence_codes(loops)
    if code is None:
        return None
    seconds, emitted = column(loops, "loop_s"), column(loops, "emitted")
    before = running(emitted, code) - emitted
    needed = before < n
    total = np.bincount(code, weights=emitted)
    enough = total >= n
    return {
        "seconds": np.bincount(code, weights=seconds * needed)[enough],
        "loops": np.bincount(code, weights=needed.astype(np.float64))[enough],
        "mean_loop_s": np.array([seconds.mean()]),
    }


def sequence_codes(loops: pd.DataFrame) -> npt.NDArray[np.int64] | None:
    """Number of the sequence that each loop belongs to; None unless sequences stand together, in order."""
    if "loop" not in loops:
        return None
    first = column(loops, "loop") == 0
    return np.cumsum(first) - 1 if len(first) and first[0] else None


def running(values: Floats, code: npt.NDArray[np.int64]) -> Floats:
    """Cumulative sum that restarts with every sequence."""
    total = np.cumsum(values)
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    offsets = total[starts] - values[starts]
    return np.asarray(total - offsets[code])


def _paper_clock(reached: dict[str, Floats]) -> MeanSd | None:
    times = reached["loops"] * reached["mean_loop_s"]
    return {"mean": float(times.mean()), "sd": _sd(times)} if len(times) else None


def _spread(seconds: Floats) -> Spread | None:
    if not len(seconds):
        return None
    return {
        "p50": float(np.quantile(seconds, 0.5)),
        "p90": float(np.quantile(seconds, 0.9)),
        "p99": float(np.quantile(seconds, 0.99)),
        "mean": float(seconds.mean()),
        "sd": _sd(seconds),
    }


def _sd(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


EDGES = (0, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bins of output positions, each up to the next; the last has no end."""


def positions(loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow]) -> list[ArmPositions] | None:
    """Acceptance of every SpS arm by where in the output the loop began."""
    found: list[ArmPositions] = []
    for row in rows:
        loops = loops_by_arm.get(row["arm"])
        if not row["acceptance"] or loops is None:
            continue
        bins = _bins(loops)
        if bins:
            found.append({**identity(row), "bins": bins})
    return found or None


def _bins(loops: pd.DataFrame) -> list[PositionBin]:
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

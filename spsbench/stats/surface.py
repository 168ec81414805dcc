"""The speedup over batch size and K, with the line up to which speculation pays.

A larger batch makes a target's step dearer and a row of it cheaper: what verification could use is used
already. Every cell compares SpS with ArS at its own batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.axes import place, series_axes
from spsbench.base.records import Interval
from spsbench.stats.bootstrap import LEVEL, RESAMPLES, SEED
from spsbench.stats.latency import sequence_s
from spsbench.stats.losslessness import identity
from spsbench.stats.speedup import column, finished, paired_sums, ratio_of_sums
from spsbench.store.summary_types import ArmRow, PaysUpTo, Surface, SurfaceCell

if TYPE_CHECKING:
    import pandas as pd


def surfaces(
    by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow], *, clean: bool = True
) -> list[Surface]:
    """Return a surface per place of the speculative arms but batch and K; none without two batch sizes."""
    keys = dict.fromkeys(place(row, "batch", "k") for row in rows if row["method"] == "sps")
    results = []
    for key in keys:
        own = [row for row in rows if place(row, "batch", "k") == key and row["speedup"] is not None]
        if len({row["batch"] for row in own}) > 1:
            results.append(_surface(own, by_arm, clean=clean))
    return results


def _surface(own: Sequence[ArmRow], by_arm: Mapping[str, pd.DataFrame], *, clean: bool) -> Surface:
    """Of one place: a cell for each batch size and K, and where each K pays."""
    baselines = {str(row["baseline"]): row["batch"] for row in own}
    cells = [_cell(arm, batch, 0, None, by_arm) for arm, batch in baselines.items()]
    cells += [_cell(row["arm"], row["batch"], row["k"], row, by_arm) for row in own]
    alone = {cell["k"]: by_arm[cell["arm"]] for cell in cells if cell["batch"] == 1}
    for cell in cells:
        if cell["k"] in alone:
            same = identity(alone[cell["k"]], by_arm[cell["arm"]])
            cell["compared"] = sequences = 0 if same is None else same["sequences"]
            cell["as_alone"] = 0 if same is None else round(sequences * same["identical"])
    ks = sorted({row["k"] for row in own})
    axes = series_axes(own[0])
    return {
        **{name: axes[name] for name in ("sampling", "engine", "drafter", "rule", "policy")},  # type: ignore[typeddict-item]
        "cells": sorted(cells, key=lambda cell: (cell["batch"], cell["k"])),
        "pays_up_to": [_pays_up_to(k, [row for row in own if row["k"] == k], by_arm, clean) for k in ks],
    }


def _cell(
    arm: str, batch: int, k: int, row: ArmRow | None, by_arm: Mapping[str, pd.DataFrame]
) -> SurfaceCell:
    """Speed, latency, tokens per loop and speedup of one batch size and K."""
    done = finished(by_arm[arm])
    seconds = column(done, "decode_s").sum()
    tokens = column(done, "new_tokens").sum()
    return {
        "arm": arm,
        "batch": batch,
        "k": k,
        "tokens_per_s": float(tokens / seconds),
        "latency_ms_per_token": float(1e3 * sequence_s(done).sum() / tokens),
        "compared": 0,
        "as_alone": None,
        "tokens_per_loop": None if row is None else row["tokens_per_loop"],
        "speedup": None if row is None else row["speedup"],
    }


def _pays_up_to(k: int, rows: Sequence[ArmRow], by_arm: Mapping[str, pd.DataFrame], clean: bool) -> PaysUpTo:
    """Which batch size, from the waves of prompts that all of a K's batch sizes share."""
    ordered = sorted(rows, key=lambda row: row["batch"])
    sums = [paired_sums(by_arm[str(row["baseline"])], by_arm[row["arm"]]) for row in ordered]
    shared = sorted(set.intersection(*(set(frame.index) for frame in sums)))
    data = [frame.loc[shared].to_numpy(dtype=np.float64).T for frame in sums]
    sizes = [row["batch"] for row in ordered]
    limit = pays_up_to(sizes, data, ratio_of_sums, together=True) if shared else None
    several = any(row["processes"] > 1 for row in ordered)
    ends = (None, None, None) if limit is None else (limit.estimate, limit.low, limit.high)
    batch, low, high = (None if end is None or math.isinf(end) else end for end in ends)
    if several or not clean:
        low = high = None
    beyond = limit is not None and math.isinf(limit.estimate)
    return {"k": k, "batch": batch, "low": low, "high": high, "beyond": beyond}


def crossing(sizes: Sequence[int], speedups: Sequence[float]) -> float:
    """Return the size at which speedups fall below 1 and stay there.

    Between two sizes it is interpolated, the logarithm of one over that of the other. 0 says that speculation
    pays at none that was measured, infinity that it pays at the largest.
    """
    above = [place for place, speedup in enumerate(speedups) if speedup > 1]
    if not above:
        return 0.0
    last = above[-1]
    if last == len(speedups) - 1:
        return math.inf
    high = math.log(speedups[last])
    after = speedups[last + 1]
    share = high / (high - math.log(after)) if after > 0 else 0.0
    return float(sizes[last] * (sizes[last + 1] / sizes[last]) ** share)


def pays_up_to(
    sizes: Sequence[int], data: Sequence[Floats], speedup: Callable[[Floats], Floats], *, together: bool
) -> Interval | None:
    """Return ``crossing`` with its 95% interval over waves.

    Args:
        data: of each size its sums by wave, [columns, waves].
        speedup: from sums, [columns, m], to values, [m].
    """
    points, drawn = [], []
    generator = np.random.default_rng(SEED)
    counts: Floats | None = None
    for own in data:
        waves = own.shape[1]
        if counts is None or not together:
            counts = generator.multinomial(waves, np.full(waves, 1 / waves), RESAMPLES).astype(np.float64)
        with np.errstate(all="ignore"):
            points.append(float(speedup(own.sum(axis=1, keepdims=True))[0]))
            drawn.append(speedup(own @ counts.T))
    if not np.isfinite(points).all():
        return None
    point = crossing(sizes, points)
    if not np.isfinite(drawn).all() or min(own.shape[1] for own in data) < 2:
        return Interval(point, None, None)
    crossings = np.sort([crossing(sizes, list(each)) for each in zip(*drawn, strict=True)])
    places = (min(RESAMPLES - 1, int(share * RESAMPLES)) for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(point, *(float(crossings[place]) for place in places))

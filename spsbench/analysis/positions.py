"""Acceptance along the output: whether the draft keeps up as the text grows.

Acceptance by position within a draft stands under ``acceptance_per_position`` (joint) and
``conditional_acceptance``; here a loop is filed under the output position at which it begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.analysis.matched import column
from spsbench.analysis.numbers import ratio
from spsbench.analysis.tails import running, sequence_codes
from spsbench.axes import identity

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

EDGES = (0, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bins of output positions, each up to the next; the last has no end."""


def positions(
    loops_by_arm: Mapping[str, pd.DataFrame], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Acceptance of every SpS arm by where in the output the loop began.

    Returns:
        per arm its identity and ``bins``: ``start``, ``end`` (None: no end), ``loops``,
        ``alpha_tested``, ``alpha_beta`` and ``mean_acceptance_length``. None without an SpS arm whose
        accepted counts were seen.
    """
    found = []
    for row in rows:
        loops = loops_by_arm.get(row["arm"])
        if not row["acceptance"] or loops is None:
            continue
        bins = _bins(loops)
        if bins:
            found.append({**identity(row), "bins": bins})
    return found or None


def _bins(loops: pd.DataFrame) -> list[dict[str, Any]]:
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

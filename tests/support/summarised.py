"""``summarise`` for hand-made tables: their samples say themselves what their arms are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from spsbench.stats import summary

_AXES = ["arm", "method", "k", "engine", "sampling"]
_LATER = ["drafter", "rule", "policy"]


def summarise(samples: pd.DataFrame, loops: pd.DataFrame, info: Mapping[str, Any]) -> Any:
    """The summary of a run whose table of arms is what the samples' own columns say.

    Args:
        samples: with the columns of ``_AXES``.
        loops: as in a run.
        info: of ``run.json``; arms that it names come first.
    """
    named = {arm["arm"]: arm for arm in info.get("arms", ())}
    found = {arm["arm"]: arm for arm in arms_in(samples)}
    own = samples.drop(columns=[*_AXES[1:], *(name for name in _LATER if name in samples)])
    return summary.summarise(own, loops, {**info, "arms": list((named | found).values())})


def arms_in(samples: pd.DataFrame) -> list[dict[str, Any]]:
    """The table of arms that samples tell in columns of their own."""
    told = [*_AXES, *(name for name in _LATER if name in samples)]
    rows = samples[told].drop_duplicates("arm").to_dict("records")
    return [{str(name): value for name, value in row.items() if value is not None} for row in rows]

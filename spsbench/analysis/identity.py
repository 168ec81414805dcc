"""Greedy arms: whether they wrote the same tokens as greedy ArS, and where they first parted.

Two correct greedy computations may part at a numeric tie, since kernels differ by the number of
rows. Parting is therefore a number here and no verdict; ``spsbench verify`` measures the gap of the
two best logits and tells a tie from a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spsbench.analysis.speedup import finished

if TYPE_CHECKING:
    import pandas as pd

_KEY = ["example_id", "sample_index"]


def identity(baseline: pd.DataFrame, arm: pd.DataFrame) -> dict[str, Any] | None:
    """Compare the tokens of two arms sequence by sequence.

    Args:
        baseline, arm: rows of ``samples`` with ``token_ids``.

    Returns:
        ``sequences`` compared, the share ``identical``, and ``first_divergence``: the earliest
        position (from 0) at which any of them parted, with its ``example_id`` and ``sample_index``;
        None where there is nothing to compare.
    """
    if "token_ids" not in baseline or "token_ids" not in arm:
        return None
    columns = [*_KEY, "token_ids"]
    both = finished(baseline)[columns].merge(finished(arm)[columns], on=_KEY, suffixes=("_base", "_arm"))
    if both.empty:
        return None
    parted = [divergence(*pair) for pair in zip(both["token_ids_base"], both["token_ids_arm"], strict=True)]
    places = [(position, index) for index, position in enumerate(parted) if position is not None]
    return {
        "sequences": len(both),
        "identical": 1.0 - len(places) / len(both),
        "first_divergence": _first(both, places),
    }


def divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ, an end included; None if they are the same."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _first(both: pd.DataFrame, places: list[tuple[int, int]]) -> dict[str, Any] | None:
    if not places:
        return None
    position, index = min(places)
    row = both.iloc[index]
    return {
        "position": position,
        "example_id": str(row["example_id"]),
        "sample_index": int(row["sample_index"]),
    }

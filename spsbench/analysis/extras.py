"""What a summary tells beyond the table: theory, why, ceiling, tails, hindsight and the best K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spsbench.analysis.ceiling import ceiling
from spsbench.analysis.hindsight import hindsight
from spsbench.analysis.matched import loops_of
from spsbench.analysis.numbers import plain
from spsbench.analysis.positions import positions
from spsbench.analysis.prediction import prediction
from spsbench.analysis.recommend import recommendation
from spsbench.analysis.speedup import finished
from spsbench.analysis.tails import tails
from spsbench.analysis.why import why

if TYPE_CHECKING:
    import pandas as pd


def extras(
    by_arm: Mapping[str, pd.DataFrame],
    loops_by_arm: Mapping[str, pd.DataFrame],
    rows: Sequence[dict[str, Any]],
    info: Mapping[str, Any],
) -> dict[str, Any]:
    """The parts of ``summary.json`` that explain its rows; each null where it has nothing to say.

    Each row also gets its own ``prediction``, ``{"leviathan": ..., "chen": ...}``, null for arms that
    predict nothing.

    Args:
        by_arm: rows of ``samples`` of each arm.
        loops_by_arm: rows of ``loops`` of each arm.
        rows: the arms' rows of the summary.
        info: of ``summarise``.
    """
    loops = {
        arm: loops_of(part, finished(by_arm[arm]), len(by_arm[arm]))
        for arm, part in loops_by_arm.items()
        if arm in by_arm
    }
    found: dict[str, Any] = {
        "prediction": prediction(rows, info),
        "why": why(by_arm, loops_by_arm, rows),
        "ceiling": ceiling(by_arm, rows, info),
        "tails": tails(by_arm, loops, rows),
        "positions": positions(loops, rows),
        "hindsight": hindsight(loops, rows),
        "recommendation": recommendation(by_arm, rows),
    }
    found = dict(plain(found))
    _annotate(rows, found["prediction"])
    return found


def _annotate(rows: Sequence[dict[str, Any]], predicted: Mapping[str, Any] | None) -> None:
    arms = {arm["arm"]: arm for arm in (predicted or {"arms": []})["arms"]}
    for row in rows:
        arm = arms.get(row["arm"])
        row["prediction"] = None if arm is None else {"leviathan": arm["predicted"], "chen": arm["chen"]}

"""Acceptance by draft position, and along the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.summary_types import ArmRow

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_BINS = 16
_FEWEST_TESTS = 20
_HEADROOM = 1.04


def draw(measured: Measured) -> Drawing:
    """Both panels; raises LeftOut where no acceptance was seen."""
    shown = [series for series in measured.series if _deepest(series)]
    if not shown:
        raise FigureSkipped("no engine saw what was accepted")
    figure, (position, along) = style.sheet(measured, (1, 1.25), 2.9)
    _by_position(position, measured, shown)
    _along(along, measured, shown)
    keys = [style.key(s.label, **style.look(measured.series.index(s))) for s in shown]
    keys.append(style.key("joint", color=style.FAINT, marker="o"))
    keys.append(style.key("conditional", color=style.FAINT, marker="o", mfc="w", linestyle=(0, (1, 1.2))))
    style.legend(figure, keys)
    deepest = max(row["k"] for series in shown for row in [_deepest(series)] if row)
    return Drawing(
        "acceptance", "Acceptance by draft position and along the output", _caption(deepest), figure
    )


def _caption(k: int) -> str:
    return (
        f"By position, K = {k}: joint, the share of loops that accepted j tokens or more (filled), and "
        "conditional, the share accepted at position j of those tested there (hollow). Along the output: "
        "accepted / tested tokens by where the loop begins, all K together; band: one standard error over "
        "prompts."
    )


def _deepest(series: Series) -> ArmRow | None:
    """The row with the largest K: it sees the most positions."""
    rows = [row for row in series.counting_tokens if row["acceptance"]]
    return max(rows, key=lambda row: row["k"], default=None)


def _by_position(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    axes.set_title("Acceptance by draft position j")
    axes.set_ylabel("share accepted")
    most = 1
    for series in shown:
        row = _deepest(series)
        look = style.look(measured.series.index(series))
        assert row is not None
        assert row["acceptance"] is not None
        most = max(most, row["k"])
        hollow = {"mfc": style.PAPER, "linestyle": (0, (1, 1.2)), "linewidth": 1.1}
        for values, changes in (
            (row["acceptance"]["acceptance_per_position"], {}),
            (row["acceptance"]["conditional_acceptance"], hollow),
        ):
            points = [(j, value) for j, value in enumerate(values, 1) if value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), **look | changes)
    axes.set_xlabel("position j in the draft")
    axes.set_xticks(range(1, most + 1, 1 + most // 12))
    axes.set_xlim(0.6, most + 0.4)
    axes.set_ylim(0, _HEADROOM)


def _along(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title("Acceptance along the output")
    axes.set_ylabel("accepted / tested")
    for series in shown:
        look = style.look(measured.series.index(series))
        centres, rates, errors = _profile(measured, series)
        if len(centres):
            axes.fill_between(centres, rates - errors, rates + errors, color=look["color"], alpha=0.15, lw=0)
            axes.plot(centres, rates, **look | {"markersize": 3.5})
    axes.set_xlabel("position of the loop (output tokens before it)")
    axes.set_ylim(0, _HEADROOM)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _profile(measured: Measured, series: Series) -> tuple[Floats, Floats, Floats]:
    """Centre of each stretch of the output, accepted / tested there, and its standard error."""
    parts = [
        measured.loops_by_arm[r["arm"]] for r in series.counting_tokens if r["arm"] in measured.loops_by_arm
    ]
    columns = ["example_id", "start", "accepted", "tested"]
    loops = _joined([part[columns] for part in parts])
    loops = loops[loops["accepted"].notna() & (loops["tested"] > 0)]
    if loops.empty:
        return np.empty(0), np.empty(0), np.empty(0)
    width = max(1, -(-(int(loops["start"].max()) + 1) // _BINS))
    cells = loops.assign(bin=loops["start"] // width).groupby(["bin", "example_id"], sort=True)
    sums = cells[["accepted", "tested"]].sum().reset_index()
    points = [_point(int(part["bin"].iloc[0]), width, part) for _, part in sums.groupby("bin")]
    kept = [point for point in points if point is not None]
    if not kept:
        return np.empty(0), np.empty(0), np.empty(0)
    centres, rates, errors = (np.asarray(column) for column in zip(*kept, strict=True))
    return centres, rates, errors


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


def _point(number: int, width: int, prompts: pd.DataFrame) -> tuple[float, float, float] | None:
    """One stretch: a ratio of sums, its error from the scatter between prompts; None with few tests."""
    accepted, tested = (prompts[name].to_numpy(dtype=np.float64) for name in ("accepted", "tested"))
    if tested.sum() < _FEWEST_TESTS:
        return None
    rate, n = accepted.sum() / tested.sum(), len(prompts)
    scatter = np.square(accepted - rate * tested).sum() * (n / (n - 1) if n > 1 else 0.0)
    return (number + 0.5) * width, float(rate), float(np.sqrt(scatter) / tested.sum())

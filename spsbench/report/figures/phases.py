"""Where a loop's time goes, stacked by K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.report.wording import phase_ms
from spsbench.summary_types import ArmRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("verify", "draft", "sample", "other")
COMM = "comm"
"""A part more where the target is split over processes."""


def draw(measured: Measured) -> Drawing:
    """One panel per series; raises LeftOut where no engine told its phases apart."""
    shown = [series for series in measured.series if _told(series)]
    if not shown:
        raise FigureSkipped("no engine told the parts of a loop apart (on a GPU work is asynchronous)")
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, series in zip(panels, shown, strict=True):
        _panel(axes, series)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    style.label_beside(panels, "time per loop (ms)")
    parts = _parts([row for series in shown for row in _told(series)])
    style.legend(figure, [_patch(part, _TONES[part]) for part in parts])
    split = f"{_CAPTION[:-1]}; comm, collectives between the processes that share the target."
    caption = split if COMM in parts else _CAPTION
    return Drawing("loop_time", "Where a loop's time goes", caption, figure)


_TONES = {**dict(zip(PARTS, style.TONES, strict=True)), COMM: style.SERIES[4]}


def _parts(rows: list[ArmRow]) -> tuple[str, ...]:
    """The parts that the loops of these arms have."""
    split = any(phase_ms(row["loop_time"], COMM) is not None for row in rows)
    return (*PARTS, COMM) if split else PARTS


_CAPTION = (
    "Mean milliseconds of a loop: verify, the target's pass over K + 1 tokens (one at K = 0, which is ArS); "
    "draft, K passes of the draft; sample, warping, tests and draws; other, the host's own work."
)


def _told(series: Series) -> list[ArmRow]:
    return [
        row
        for row in series.rows
        if row["loop_time"] and all(phase_ms(row["loop_time"], part) is not None for part in PARTS)
    ]


def _panel(axes: Axes, series: Series) -> None:
    rows = _told(series)
    x = np.arange(len(rows))
    bottom = np.zeros(len(rows))
    for part in _parts(rows):
        heights = np.asarray([phase_ms(row["loop_time"], part) or 0.0 for row in rows], dtype=np.float64)
        axes.bar(x, heights, 0.7, bottom, color=_TONES[part], edgecolor=style.PAPER, linewidth=0.6)
        bottom += heights
    style.places(axes, [row["k"] for row in rows])
    axes.set_title(f"Loop time, {series.label}")


def _patch(label: str, tone: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=tone, edgecolor=style.PAPER, label=label)

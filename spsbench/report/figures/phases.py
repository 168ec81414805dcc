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
    panels[0].set_ylabel("ms per loop")
    style.legend(figure, [_patch(part, tone) for part, tone in zip(PARTS, style.TONES, strict=True)])
    return Drawing("loop_time", "Where a loop's time goes", _CAPTION, figure)


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
    for part, tone in zip(PARTS, style.TONES, strict=True):
        heights = np.asarray([phase_ms(row["loop_time"], part) for row in rows], dtype=np.float64)
        axes.bar(x, heights, 0.7, bottom, color=tone, edgecolor=style.PAPER, linewidth=0.6)
        bottom += heights
    style.places(axes, [row["k"] for row in rows])
    axes.set_title(f"Loop time, {series.label}")


def _patch(label: str, tone: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=tone, edgecolor=style.PAPER, label=label)

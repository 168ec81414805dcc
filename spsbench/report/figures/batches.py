"""Speedup against batch size, a line for each K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing
from spsbench.report.measured import Measured
from spsbench.report.surfaces import batches, title
from spsbench.report.wording import ends
from spsbench.summary_types import Surface

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(measured: Measured) -> Drawing:
    """One panel per surface of a run that has any."""
    shown = measured.summary["surfaces"]
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    ks = sorted({cell["k"] for surface in shown for cell in surface["cells"]} - {0})
    for axes, surface in zip(panels, shown, strict=True):
        _panel(axes, surface, ks)
    style.legend(figure, [style.key(f"K={k}", **style.look(number)) for number, k in enumerate(ks)])
    cells = [cell["speedup"] for surface in shown for cell in surface["cells"]]
    caption = "Ratio of time per token, ArS over SpS of the same batch size; above 1 SpS is faster."
    if any(found is not None and found["low"] is not None for found in cells):
        caption += " Bars: 95% interval over waves of prompts."
    return Drawing("batches", "Speedup against batch size", caption, figure)


def _panel(axes: Axes, surface: Surface, ks: Sequence[int]) -> None:
    sizes = batches(surface)
    axes.axhline(1.0, color=style.FAINT, linewidth=0.9)
    for number, k in enumerate(ks):
        cells = [(cell["batch"], cell["speedup"]) for cell in surface["cells"] if cell["k"] == k]
        known = [(batch, found) for batch, found in cells if found is not None]
        if not known:
            continue
        ratios = np.asarray([found["ratio"] for _, found in known])
        intervals = np.asarray([ends(found) for _, found in known]).T
        places = [sizes.index(batch) for batch, _ in known]
        axes.errorbar(places, ratios, yerr=np.abs(intervals - ratios), elinewidth=1.0, **style.look(number))
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size B (sequences)")
    axes.set_ylabel("speedup (x)")
    axes.set_title(title(surface))

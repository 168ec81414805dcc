"""Tokens per loop against K: measured, by replay of the ArS texts, and if tests were independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.summary_types import ArmPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(measured: Measured) -> Drawing:
    """One panel per series; raises FigureSkipped where no ArS text was read with the draft."""
    shown = [(series, arms) for series in measured.series if len(arms := _replayed(measured, series)) > 1]
    if not shown:
        raise FigureSkipped(
            "fewer than two lookaheads are replayed: that takes ArS texts read with the draft"
        )
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, (series, arms) in zip(panels, shown, strict=True):
        _panel(axes, measured, series, arms)
    style.legend(
        figure,
        [
            style.key("measured", color=style.INK, marker="o", linestyle=""),
            style.key("by replay of ArS texts, 95%", color=style.INK, linestyle="-"),
            style.key("if tests were independent (Leviathan)", color=style.FAINT, linestyle=_DASHES, lw=1.2),
        ],
    )
    return Drawing("replay", "Tokens per loop by replay", _CAPTION, figure)


_DASHES = (0, (5, 2))
_CAPTION = (
    "Tokens kept per loop. Points: measured. Line: predicted for each K by replay of this run's ArS texts; "
    "band: 95% interval over prompts. Dashes: the same alpha at every position."
)


def _replayed(measured: Measured, series: Series) -> list[ArmPrediction]:
    """The arms of a series along K that were replayed, by K."""
    found = measured.summary.get("prediction")
    names = {row["arm"] for row in series.speculative}
    arms = [arm for arm in (found["arms"] if found else ()) if arm["arm"] in names]
    return sorted((arm for arm in arms if arm["tokens_per_loop_replayed"]), key=lambda arm: arm["k"])


def _panel(axes: Axes, measured: Measured, series: Series, arms: Sequence[ArmPrediction]) -> None:
    look = style.look(measured.series.index(series))
    ks = [arm["k"] for arm in arms]
    lengths = [found for arm in arms if (found := arm["tokens_per_loop_replayed"])]
    axes.plot(ks, [found["estimate"] for found in lengths], color=look["color"], linewidth=1.4)
    band = np.array([[found["low"] or np.nan, found["high"] or np.nan] for found in lengths]).T
    axes.fill_between(ks, *band, color=look["color"], alpha=0.2, linewidth=0)
    kept = [arm["tokens_per_loop_kept"] or np.nan for arm in arms]
    independent = [arm["tokens_per_loop_predicted"] or np.nan for arm in arms]
    axes.plot(ks, kept, **{**look, "linestyle": ""})
    axes.plot(ks, independent, color=style.FAINT, linestyle=_DASHES)
    style.over_k(axes, ks)
    axes.set_ylabel("tokens per loop")
    axes.set_title(f"Tokens per loop, {series.label}")

"""Speedup against K, measured and predicted."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spsbench.axes import label, place
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.report.wording import ends, printable, sped, speedup
from spsbench.summary_types import ArmRow, LoopLine, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Formula = Literal["leviathan", "chen"]


def predicted(row: ArmRow, name: Formula) -> float | None:
    """The speedup that a formula predicts for a row, or None."""
    found = row.get("prediction")
    return found[name] if found else None


def loop_line(summary: Summary, row: ArmRow) -> LoopLine | None:
    """The line fitted to the loop's time against K for the series along K of a row, or None."""
    prediction = summary.get("prediction")
    for found in prediction["samplings"] if prediction else ():
        if place({"k": None, **found}, "k") == place(row, "k"):
            return found["loop"]
    return None


def by_arm(measured: Measured) -> Drawing:
    """A bar for every speculative arm, in the order of the tables."""
    rows = sped(row for row in measured.summary["rows"] if row["method"] == "sps")
    if not rows:
        raise FigureSkipped("no arm has a speedup")
    several = len({row["sampling"] for row, _ in rows}) > 1
    names = [label(row) + (f", {row['sampling']}" if several else "") for row, _ in rows]
    ratios = np.asarray([found["ratio"] for _, found in rows])
    intervals = np.asarray([ends(found) for _, found in rows]).T
    figure, (axes,) = style.sheet(measured, [1.0], 1.0 + _BAR_IN * len(rows))
    places = range(len(rows))
    colors = [style.SERIES[0] if low > 1 else style.TONES[2] for low in intervals[0]]
    axes.barh(places, ratios, height=0.62, color=colors)
    axes.set_yticks(places, [textwrap.fill(printable(name), _NAME_CHARACTERS) for name in names])
    if any(found["low"] is not None for _, found in rows):
        axes.errorbar(ratios, places, xerr=np.abs(intervals - ratios), fmt="none", color=style.INK)
    for at, high, (_, found) in zip(places, intervals[1], rows, strict=True):
        axes.annotate(speedup(found), (high, at), (5, 0), textcoords="offset points", va="center")
    axes.axvline(1.0, color=style.FAINT, linewidth=0.9)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(1.0, intervals[1].max()))
    axes.set_xlabel("speedup over ArS (x), decoding alone")
    axes.set_title("Speedup by arm")
    caption = (
        "Ratio of time per token, ArS over SpS, decoding alone; above 1 SpS is faster. Lines: 95% interval "
        "over prompts; a pale bar's is not above 1 as a whole."
    )
    return Drawing("arms", "Speedup by arm", caption, figure)


_BAR_IN, _NAME_CHARACTERS = 0.36, 26


def draw(measured: Measured) -> Drawing:
    """One panel per series; raises LeftOut without two measured speedups in any."""
    shown = [series for series in measured.series if len(sped(series.speculative)) > 1]
    if not shown:
        raise FigureSkipped("fewer than two lookaheads have a speedup")
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, series in zip(panels, shown, strict=True):
        _panel(axes, measured, series)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    names = [name for name in _DASHES if any(name in _predictions(series) for series in shown)]
    intervals = any(found["low"] is not None for series in shown for _, found in sped(series.speculative))
    name = "measured, 95% interval" if intervals else "measured"
    keys = [style.key(name, color=style.INK, marker="o", linestyle="-")]
    keys += [style.key(_NAMES[name], color=style.FAINT, linestyle=_DASHES[name], lw=1.2) for name in names]
    style.legend(figure, keys)
    return Drawing("speedup", "Speedup against K", _caption(names, intervals), figure)


def _caption(predictions: list[Formula], intervals: bool) -> str:
    text = "Ratio of time per token, ArS over SpS, decoding alone; above 1 SpS is faster."
    if intervals:
        text += " Bars: 95% interval over prompts."
    if predictions:
        text += (
            " Predictions assume that verifying K + 1 tokens costs one target step and that all else is free."
        )
    if "leviathan" in predictions:
        text += " Leviathan's alpha comes from teacher forcing on ArS text, never from the result."
    return text


def _panel(axes: Axes, measured: Measured, series: Series) -> None:
    look = style.look(measured.series.index(series))
    rows = sped(series.speculative)
    ratios = np.asarray([found["ratio"] for _, found in rows])
    intervals = np.asarray([ends(found) for _, found in rows]).T
    axes.axhline(1.0, color=style.FAINT, linewidth=0.9)
    for name, values in _predictions(series).items():
        axes.plot(*zip(*values, strict=True), color=style.FAINT, linestyle=_DASHES[name], linewidth=1.2)
    axes.errorbar(
        [row["k"] for row, _ in rows], ratios, yerr=np.abs(intervals - ratios), elinewidth=1.0, **look
    )
    style.over_k(axes, [k for k in measured.ks if k > 0])
    axes.set_ylabel("speedup (x)")
    axes.set_title(f"Speedup, {series.label}")


_DASHES: dict[Formula, Any] = {"leviathan": (0, (5, 2)), "chen": (0, (1, 1.2))}
_NAMES = {"leviathan": "predicted from alpha and c (Leviathan)", "chen": "from r' and step times (Chen)"}


def _predictions(series: Series) -> dict[Formula, list[tuple[int, float]]]:
    """Predicted speedups by K, for each formula that predicts any."""
    found = {}
    for name in _DASHES:
        values = [(row["k"], predicted(row, name)) for row in series.speculative]
        there = [(k, value) for k, value in values if value is not None]
        if there:
            found[name] = there
    return found

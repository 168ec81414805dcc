"""Speedup against K, measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.axes import place
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def predicted(row: Mapping[str, Any], name: str) -> float | None:
    """The speedup that a formula (``leviathan`` or ``chen``) predicts for a row, or None."""
    value = (row.get("prediction") or {}).get(name)
    return None if value is None else float(value)


def loop_line(summary: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line fitted to the loop's time against K for the series along K of a row, or None."""
    for found in (summary.get("prediction") or {}).get("samplings") or ():
        if place({"k": None, "method": "sps", **found}, "k") == place(row, "k"):
            line: dict[str, Any] | None = found["loop"]
            return line
    return None


def draw(measured: Measured) -> Drawing:
    """One panel per series; raises LeftOut without two measured speedups in any."""
    shown = [series for series in measured.series if len(_measured(series)) > 1]
    if not shown:
        raise FigureSkipped("fewer than two lookaheads have a speedup")
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, series in zip(panels, shown, strict=True):
        _panel(axes, measured, series)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    names = [name for name in _DASHES if any(name in _predictions(series) for series in shown)]
    keys = [style.key("measured, 95%", color=style.INK, marker="o", linestyle="-")]
    keys += [style.key(_NAMES[name], color=style.FAINT, linestyle=_DASHES[name], lw=1.2) for name in names]
    style.legend(figure, keys)
    return Drawing("speedup", "Speedup against K", _caption(names), figure)


def _measured(series: Series) -> list[dict[str, Any]]:
    return [row for row in series.speculative if row["speedup"] is not None]


def _caption(predictions: list[str]) -> str:
    text = "Ratio of time per token, ArS over SpS, decoding alone; above 1 SpS is faster. Bars: 95% interval."
    if predictions:
        text += " Predictions take verifying K + 1 tokens for one target step and all else as free."
    if "leviathan" in predictions:
        text += " Leviathan's alpha comes from teacher forcing on ArS text, never from the result."
    return text


def _panel(axes: Axes, measured: Measured, series: Series) -> None:
    look = style.look(measured.series.index(series))
    rows = _measured(series)
    ratios = np.asarray([row["speedup"]["ratio"] for row in rows])
    ends = np.asarray([_ends(row["speedup"]) for row in rows]).T
    axes.axhline(1.0, color=style.FAINT, linewidth=0.9)
    for name, values in _predictions(series).items():
        axes.plot(*zip(*values, strict=True), color=style.FAINT, linestyle=_DASHES[name], linewidth=1.2)
    axes.errorbar([row["k"] for row in rows], ratios, yerr=np.abs(ends - ratios), elinewidth=1.0, **look)
    style.over_k(axes, [k for k in measured.ks if k > 0])
    axes.set_title(f"Speedup, {series.label}")


_DASHES = {"leviathan": (0, (5, 2)), "chen": (0, (1, 1.2))}
_NAMES = {"leviathan": "predicted from alpha and c (Leviathan)", "chen": "from r' and step times (Chen)"}


def _predictions(series: Series) -> dict[str, list[tuple[int, float]]]:
    """Predicted speedups by K, for each formula that predicts any."""
    found = {}
    for name in _DASHES:
        values = [(row["k"], predicted(row, name)) for row in series.speculative]
        there = [(k, value) for k, value in values if value is not None]
        if there:
            found[name] = there
    return found


def _ends(speedup: dict[str, Any]) -> tuple[float, float]:
    ratio = speedup["ratio"]
    return (ratio, ratio) if speedup["low"] is None else (speedup["low"], speedup["high"])

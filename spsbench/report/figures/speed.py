"""Speedups against K, by arm and by batch size, and Figure 1 of Chen et al. 2023 from our measurements."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from spsbench.axes import label, place
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.report.results import batch_sizes
from spsbench.report.results import surface_title as surface_title
from spsbench.report.wording import ends, milliseconds, printable, sped, speedup
from spsbench.summary_types import ArmRow, LoopLine, Summary, Surface

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


def against_k(measured: Measured) -> Drawing:
    """One panel per series; raises LeftOut without two measured speedups in any."""
    shown = [series for series in measured.series if len(sped(series.speculative)) > 1]
    if not shown:
        raise FigureSkipped("fewer than two lookaheads have a speedup")
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, series in zip(panels, shown, strict=True):
        _speedup_panel(axes, measured, series)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    names = [name for name in _DASHES if any(name in _predictions(series) for series in shown)]
    intervals = any(found["low"] is not None for series in shown for _, found in sped(series.speculative))
    name = "measured, 95% interval" if intervals else "measured"
    keys = [style.key(name, color=style.INK, marker="o", linestyle="-")]
    keys += [style.key(_NAMES[name], color=style.FAINT, linestyle=_DASHES[name], lw=1.2) for name in names]
    style.legend(figure, keys)
    return Drawing("speedup", "Speedup against K", _speedup_caption(names, intervals), figure)


def _speedup_caption(predictions: list[Formula], intervals: bool) -> str:
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


def _speedup_panel(axes: Axes, measured: Measured, series: Series) -> None:
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


Floats = npt.NDArray[np.float64]

_APART, _SPREAD = 0.2, 0.7
"""Between marks of the same K, and of all of them at most, in units of K."""

_MOST_NOTES = 2
"""More series than this have their slopes in the caption alone."""


def figure1(measured: Measured) -> Drawing:
    """The three panels; raises LeftOut where fewer than two lookaheads were measured."""
    if len([k for k in measured.ks if k > 0]) < 2:
        raise FigureSkipped("one lookahead makes no sweep; `spsbench sweep-k` measures several")
    figure, (time, share, loop) = style.sheet(measured, (1, 1, 1), 3.1)
    clocks = _time(time, measured)
    _r_prime(share, measured)
    slopes = _loop_time(loop, measured)
    keys = [style.key(series.label, **style.look(index)) for index, series in enumerate(measured.series)]
    if clocks:
        keys.append(style.key("the paper's clock", color=style.FAINT, marker="o", mfc="w", linestyle=""))
    style.legend(figure, keys)
    return Drawing(
        "figure1", "Figure 1 of the paper, our measurements", _figure1_caption(measured, slopes), figure
    )


def _figure1_caption(measured: Measured, slopes: list[str]) -> str:
    length = measured.fixed_length
    what = f"Time for {length} tokens" if length else "Time per token (outputs differ in length)"
    text = (
        f"{what}: mean over sequences, by wall time (filled) and by the paper's clock (hollow: mean loop "
        "time times the sequence's loops, so that only loop counts vary). Bars: one standard deviation over "
        "sequences. r' is (accepted + 1) / (K + 1), 1 at K = 0."
    )
    if slopes:
        text += (
            f" Loop time with the line fitted over K from 1 on: {'; '.join(slopes)}. Thin line: one target "
            "step plus K draft steps, without any other cost."
        )
    return text


def _time(axes: Axes, measured: Measured) -> bool:
    """Mean and deviation by both clocks; whether the paper's could be drawn."""
    length, paper = measured.fixed_length, False
    axes.set_title(f"Time for {length} tokens" if length else "Time per token")
    axes.set_ylabel("time (ms)")
    for index, series in enumerate(measured.series):
        apart = min(_APART, _SPREAD / (2 * len(measured.series)))
        look, shift = style.look(index), (2 * index + 1 - len(measured.series)) * apart
        points = [(row["k"], *_clocks(measured, row)) for row in series.rows]
        walls = [(k + shift - apart / 2, *wall) for k, wall, _ in points]
        _bars(axes, walls, markerfacecolor=look["color"], **look)
        papers = [(k + shift + apart / 2, *clock) for k, _, clock in points if clock is not None]
        if papers:
            paper = True
            _bars(axes, papers, markerfacecolor=style.PAPER, **look | {"linestyle": ""})
    style.over_k(axes, measured.ks)
    axes.set_ylim(bottom=0)
    return paper


def _bars(axes: Axes, points: list[tuple[float, float, float]], **look: Any) -> None:
    x, mean, deviation = (np.asarray(column) for column in zip(*points, strict=True))
    axes.errorbar(x, mean, yerr=deviation, elinewidth=0.8, capsize=0, markersize=3.8, lw=1.1, **look)


def _clocks(measured: Measured, row: ArmRow) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """(mean, deviation) in ms by the wall and by the paper's clock, for N tokens or one token."""
    sequences = measured.sequences[row["arm"]]
    tokens = sequences["new_tokens"].to_numpy(dtype=np.float64)
    wall = 1e3 * sequences["decode_s"].to_numpy(dtype=np.float64)
    counts = sequences["loops"].to_numpy(dtype=np.float64)
    scale = measured.fixed_length or 1
    answer = _spread(wall / tokens * scale, tokens)
    if row["loop_time"] is None or row["loop_time"]["loop_ms"] is None or np.isnan(counts).any():
        return answer, None
    return answer, _spread(counts * row["loop_time"]["loop_ms"] / tokens * scale, tokens)


def _spread(values: Floats, weights: Floats) -> tuple[float, float]:
    """Mean and standard deviation; weighted by tokens the mean is that of the result table."""
    mean, n = float(np.average(values, weights=weights)), len(values)
    variance = float(np.average((values - mean) ** 2, weights=weights)) * n / max(n - 1, 1)
    return mean, variance**0.5


def _r_prime(axes: Axes, measured: Measured) -> None:
    axes.set_title("r'")
    axes.set_ylabel("(accepted + 1) / (K + 1)")
    for index, series in enumerate(measured.series):
        points = [(row["k"], _share(row)) for row in series.rows]
        there = [(k, value) for k, value in points if value is not None]
        if there:
            axes.plot(*zip(*there, strict=True), **style.look(index))
    style.over_k(axes, measured.ks)
    axes.set_ylim(0, 1.05)


def _share(row: ArmRow) -> float | None:
    if row["k"] == 0:
        return 1.0
    return None if row["acceptance"] is None else row["acceptance"]["r_prime"]


def _loop_time(axes: Axes, measured: Measured) -> list[str]:
    """Loop time by K with the summary's fitted line and the ideal one; what the slopes are, in words."""
    axes.set_title("Loop time")
    axes.set_ylabel("time (ms)")
    told = []
    for index, series in enumerate(measured.series):
        look = style.look(index)
        points = [(row["k"], row["loop_time"]["loop_ms"]) for row in series.rows if row["loop_time"]]
        if not points:
            continue
        # Smaller from series to series: loops of equal cost lie on one another.
        axes.plot(
            *zip(*points, strict=True), **look | {"linestyle": "", "markersize": max(3, 7 - 2.5 * index)}
        )
        line = loop_line(measured.summary, series.rows[-1])
        if line is None:
            continue
        ends = np.asarray([min(line["ks"]), max(line["ks"])], dtype=np.float64)
        fitted = line["intercept_ms"] + line["slope_ms"] * ends
        axes.plot(ends, fitted, color=look["color"], linestyle=look["linestyle"])
        draft = _draft_ms(line)
        told.append(_slope(series.label, line["slope_ms"], draft))
        if len(measured.series) <= _MOST_NOTES:
            _note(axes, index, line["slope_ms"], draft)
        if draft is not None and line["ars_ms"] is not None:
            _ideal(axes, line["ars_ms"], draft, max(line["ks"]))
    style.over_k(axes, measured.ks)
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
    return told


def _draft_ms(line: LoopLine) -> float | None:
    """Milliseconds of the draft per token: run alone if that was measured, else within the loops."""
    alone: float | None = line["draft_alone_ms_per_token"]
    within: float | None = line["drafting_ms_per_token"]
    return within if alone is None else alone


def _ideal(axes: Axes, target_ms: float, draft_per_token: float, k: int) -> None:
    """Where loops would lie if verifying K + 1 tokens cost one target step and nothing else came to it."""
    axes.plot([0, k], [target_ms, target_ms + k * draft_per_token], color=style.FAINT, linewidth=0.8)


def _note(axes: Axes, index: int, slope: float, draft: float | None) -> None:
    """The slopes in the empty lower part of the panel."""
    text = f"{slope:.2f} ms per K" + ("" if draft is None else f", draft {draft:.2f}")
    height = 0.04 + 0.085 * index
    box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.0}
    color = style.look(index)["color"]
    axes.text(0.04, height, text, transform=axes.transAxes, fontsize=style.SMALL_PT, color=color, bbox=box)


def _slope(label: str, slope: float, draft: float | None) -> str:
    text = f"{label} {milliseconds(slope) if slope >= 0 else f'{slope:.3f}'} ms per drafted token"
    if draft is None:
        return text
    return f"{text} (a draft step: {milliseconds(draft)} ms)"


def against_batch(measured: Measured) -> Drawing:
    """One panel per surface of a run that has any."""
    shown = measured.summary["surfaces"]
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    ks = sorted({cell["k"] for surface in shown for cell in surface["cells"]} - {0})
    for axes, surface in zip(panels, shown, strict=True):
        _batch_panel(axes, surface, ks)
    style.legend(figure, [style.key(f"K={k}", **style.look(number)) for number, k in enumerate(ks)])
    cells = [cell["speedup"] for surface in shown for cell in surface["cells"]]
    caption = "Ratio of time per token, ArS over SpS of the same batch size; above 1 SpS is faster."
    if any(found is not None and found["low"] is not None for found in cells):
        caption += " Bars: 95% interval over waves of prompts."
    return Drawing("batches", "Speedup against batch size", caption, figure)


def _batch_panel(axes: Axes, surface: Surface, ks: Sequence[int]) -> None:
    sizes = batch_sizes(surface)
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
    axes.set_title(surface_title(surface))

"""Figure 1 of Chen et al. 2023 from our own measurements: time, r' and loop time against K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.report.figures import style
from spsbench.report.figures.speedup import loop_line
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured
from spsbench.report.wording import milliseconds
from spsbench.summary_types import ArmRow, LoopLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_APART, _SPREAD = 0.2, 0.7
"""Between marks of the same K, and of all of them at most, in units of K."""

_MOST_NOTES = 2
"""More series than this have their slopes in the caption alone."""


def draw(measured: Measured) -> Drawing:
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
    return Drawing("figure1", "Figure 1 of the paper, our measurements", _caption(measured, slopes), figure)


def _caption(measured: Measured, slopes: list[str]) -> str:
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

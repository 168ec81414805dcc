"""Not only the mean: slow sequences by K, and whom speculation made slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = (50, 90, 99)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)))
_FEW_FOR_P99 = 100


def draw(measured: Measured) -> Drawing:
    """Percentiles per series and the share of prompts slower; raises LeftOut without an SpS arm."""
    shown = [series for series in measured.series if series.speculative]
    if not shown:
        raise FigureSkipped("no speculative arm finished a sequence")
    sweep = len([k for k in measured.ks if k > 0]) > 1
    figure, panels = style.sheet(measured, [1.0] * (len(shown) + sweep), 2.9)
    tails = panels[: len(shown)]
    for axes, series in zip(tails, shown, strict=True):
        _percentiles(axes, measured, series)
    top = max(axes.get_ylim()[1] for axes in tails)
    for axes in tails:
        axes.set_ylim(0, 1.04 * top)
    if sweep:
        _slower(panels[-1], measured, shown)
    keys = [
        style.key(f"P{percentile}", color=style.INK, linestyle=dash)
        for percentile, dash in zip(PERCENTILES, _DASHES, strict=True)
    ]
    if sweep and len(shown) > 1:
        keys += [_patch(series.label, measured.series.index(series)) for series in shown]
    style.legend(figure, keys)
    return Drawing("tails", "Slow sequences and slower prompts", _caption(measured, sweep), figure)


def _caption(measured: Measured, sweep: bool) -> str:
    fewest = min(row["sequences"] for series in measured.series for row in series.rows)
    unit = f"for {measured.fixed_length} tokens" if measured.fixed_length else "per token"
    text = f"Percentiles over sequences of the decoding time {unit}; K = 0 is ArS."
    if sweep:
        text += " Slower prompts: the share whose own time per token is longer than under ArS."
    if fewest < _FEW_FOR_P99:
        text += f" With {fewest} sequences P99 is close to the slowest one."
    return text


def _percentiles(axes: Axes, measured: Measured, series: Series) -> None:
    scale = measured.fixed_length or 1
    values = []
    for row in series.rows:
        part = measured.sequences[row["arm"]]
        per_token = 1e3 * scale * part["decode_s"].to_numpy(float) / part["new_tokens"].to_numpy(float)
        values.append(np.percentile(per_token, PERCENTILES))
    look = style.look(measured.series.index(series))
    ks = [row["k"] for row in series.rows]
    for column, dash in zip(np.asarray(values).T, _DASHES, strict=True):
        axes.plot(ks, column, **look | {"linestyle": dash, "markersize": 3.5})
    length = measured.fixed_length
    axes.set_title(f"{f'Time for {length} tokens' if length else 'Time per token'}, {series.label}")
    axes.set_ylabel("time (ms)")
    style.over_k(axes, measured.ks)


def _slower(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    ks = [k for k in measured.ks if k > 0]
    width = 0.75 / len(shown)
    for number, series in enumerate(shown):
        told = [(row["k"], row["share_slower"]) for row in series.speculative]
        slower = [(k, 100 * share) for k, share in told if share is not None]
        x = [ks.index(k) + (number - (len(shown) - 1) / 2) * width for k, _ in slower]
        color = style.look(measured.series.index(series))["color"]
        shares = [share for _, share in slower]
        axes.bar(x, shares, width * 0.9, color=color, label=series.label)
        for place, share in zip(x, shares, strict=True):
            if share == 0:
                axes.text(
                    place, 0.8, "0", ha="center", va="bottom", fontsize=style.SMALL_PT, color=style.FAINT
                )
    style.places(axes, ks)
    axes.set_ylim(0, max(10.0, axes.get_ylim()[1]))
    axes.set_title("Prompts slower than under ArS")
    axes.set_ylabel("prompts (%)")


def _patch(label: str, index: int) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=style.look(index)["color"], label=label)

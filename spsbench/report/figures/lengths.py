"""How many tokens a loop yields: a small histogram for each K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_MOST_PANELS = 7


def draw(measured: Measured) -> Drawing:
    """One panel per K, the series side by side; raises LeftOut where no acceptance was seen."""
    ks = _chosen(
        sorted(
            {row["k"] for series in measured.series for row in series.counting_tokens if row["acceptance"]}
        )
    )
    if not ks:
        raise FigureSkipped("no engine saw what was accepted")
    figure, panels = style.sheet(measured, [k + 2.5 for k in ks], 2.5, _MOST_PANELS)
    top = max(_panel(axes, measured, k) for axes, k in zip(panels, ks, strict=True))
    for axes in panels:
        axes.set_ylim(0, min(1.0, 1.08 * top))
    style.label_beside(panels, "share of loops")
    keys: list[Any] = [_patch(series.label, index) for index, series in enumerate(measured.series)]
    keys.append(style.key("if tests were independent", color=style.INK, marker="_", linestyle="", mew=1.4))
    style.legend(figure, keys)
    return Drawing("tokens_per_loop", "Tokens per loop", _CAPTION, figure)


_CAPTION = (
    "Tokens of a loop: accepted + 1, before truncation. Dashes: the shares if tests were independent with "
    "the same alpha_tested. Measured bars above the dashes at both ends mean that acceptance is correlated: "
    "easy tokens follow easy ones, and hard tokens hard ones."
)


def _chosen(ks: list[int]) -> list[int]:
    """At most so many lookaheads, the ends among them."""
    if len(ks) <= _MOST_PANELS:
        return ks
    return [ks[i] for i in sorted({*np.linspace(0, len(ks) - 1, _MOST_PANELS).round().astype(int).tolist()})]


def _panel(axes: Axes, measured: Measured, k: int) -> float:
    """The histogram of one K; its highest bar."""
    width, top = 0.8 / len(measured.series), 0.0
    lengths = np.arange(1, k + 2)
    for index, series in enumerate(measured.series):
        rows = [row for row in series.counting_tokens if row["k"] == k]
        seen = [(row["arm"], found) for row in rows if (found := row["acceptance"])]
        if not seen:
            continue
        arm, acceptance = seen[0]
        accepted = measured.loops_by_arm[arm]["accepted"].to_numpy(dtype=np.int64)
        shares = np.bincount(accepted, minlength=k + 1)[: k + 1] / len(accepted)
        x = lengths + (index - (len(measured.series) - 1) / 2) * width
        axes.bar(x, shares, width * 0.92, color=style.look(index)["color"])
        expected = _independent(acceptance["alpha_tested"], k)
        axes.hlines(expected, x - width * 0.46, x + width * 0.46, color=style.INK, linewidth=1.2)
        top = max(top, float(shares.max()), float(expected.max()))
    axes.set_title(f"K = {k}")
    axes.set_xlabel("tokens")
    axes.set_xticks(lengths)
    axes.set_xlim(0.4, k + 1.6)
    return top


def _independent(alpha: float | None, k: int) -> Floats:
    """Shares of loops with 1..K+1 tokens if every test passed with ``alpha``, whatever came before."""
    if alpha is None:
        return np.full(k + 1, np.nan)
    return np.asarray([*(alpha**j * (1 - alpha) for j in range(k)), alpha**k])


def _patch(label: str, index: int) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=style.look(index)["color"], label=label)

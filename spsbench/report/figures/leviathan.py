"""Figures 2 to 4 of Leviathan et al. 2022: the formulae as lines, our measured rows of Table 2 as points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.law import theory
from spsbench.predict.whatif import leviathan
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, Plate, printed, quiet
from spsbench.report.leviathan import WalltimeRow, models
from spsbench.summary_types import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
Page = Mapping[str, Any]

_KS = (1, 3, 5, 7, 10)
_COSTS = (0.01, 0.05, 0.1, 0.2, 0.5)
_ALPHAS: Floats = np.linspace(0.0, 0.99, 199)
_MOST_TOKENS, _MOST_OPERATIONS = 10.5, 12.0
_MOST_K = 16
_NAMED_K = (14, 12, 8, 5, 3)
"""On which step of its line each c is named."""


def draw(page: Page) -> list[Plate]:
    """Figures 2, 3 and 4 from ``report.leviathan.gather``, with ``study`` as ``render`` takes it."""
    with quiet():
        return [printed(figure(page)) for figure in (_figure2, _figure3, _figure4)]


def _figure2(page: Page) -> Drawing:
    figure, (axes,) = _sheet(page, (1,), 3.9)
    top = _top(_MOST_TOKENS, page, ("expected_tokens", "tokens_per_loop"))
    _curves(axes, theory.expected_tokens, top)
    bound = _ALPHAS[top * (1.0 - _ALPHAS) > 1.0]
    axes.plot(bound, 1.0 / (1.0 - bound), color=style.FAINT, lw=0.9, linestyle=style.DASHES[4])
    for row in page["table2"]:
        _predicted(axes, row, row["expected_tokens"], row["tokens_per_loop"])
        _point(axes, page, row, row["tokens_per_loop"])
    _over_alpha(axes, "Expected tokens per loop", "tokens per loop", top)
    style.legend(figure, [*_keys(page), _formula_key("by the formula, at its K"), _bound_key()])
    caption = (
        "Lines: (1 - alpha^(K+1)) / (1 - alpha) for several K, the paper's gamma, and its limit 1 / (1 - "
        "alpha). Points: accepted + 1 tokens per loop of the rows of Table 2 against alpha by teacher "
        "forcing, and a dash where the formula puts them at their K. Bars: 95% intervals over prompts."
    )
    return Drawing("figure2", "Figure 2 of Leviathan et al., our measurements", caption, figure)


def _figure3(page: Page) -> Drawing:
    figure, (axes,) = _sheet(page, (1,), 3.9)
    for number, c in enumerate(_COSTS):
        best = [leviathan(float(alpha), c).best_k(range(1, _MOST_K + 1)) for alpha in _ALPHAS]
        color = _shade(number, len(_COSTS))
        axes.plot(_ALPHAS, best, color=color, lw=1.2, drawstyle="steps-post")
        named = int(np.argmax(np.asarray(best) >= _NAMED_K[number]))
        _name(axes, f"c={c:g}", float(_ALPHAS[named]), _NAMED_K[number] - 0.5, color)
    for row in page["table2"]:
        _point(axes, page, row, {"estimate": float(row["k"]), "low": None, "high": None})
    most = max(_MOST_K, *(row["k"] for row in page["table2"])) + 0.8
    _over_alpha(axes, "Best K", style.K_LABEL, most)
    style.legend(figure, _keys(page))
    caption = (
        "Lines: the K of the largest walltime factor for several c, up to 16; 0 where no K gains. Points: "
        "the K of the rows of Table 2, chosen in the same way from a rehearsal's alpha and c, up to "
        f"{page['study']['most_k']}. Bars: 95% intervals of alpha over prompts."
    )
    return Drawing("figure3", "Figure 3 of Leviathan et al., our measurements", caption, figure)


def _figure4(page: Page) -> Drawing:
    figure, (speed, operations) = _sheet(page, (1, 1), 3.7)
    fastest = _top(_MOST_TOKENS, page, ("predicted", "speedup"))
    most = _top(_MOST_OPERATIONS, page, ("operations",))
    _curves(speed, lambda alpha, k: theory.walltime_factor(alpha, 0.0, k), fastest)
    _curves(operations, lambda alpha, k: theory.operations_factor(alpha, 0.0, k), most, at=0.1)
    for row in page["table2"]:
        _predicted(speed, row, row["predicted"], row["speedup"])
        _point(speed, page, row, row["speedup"])
        if row["operations"] is not None:
            _point(operations, page, row, {"estimate": row["operations"], "low": None, "high": None})
    _over_alpha(speed, "Speedup (walltime factor)", "speedup (x)", fastest)
    _over_alpha(operations, "Operations per token", "multiple of ArS (x)", most)
    operations.set_yscale("log", base=2)
    operations.set_ylim(0.95, most)
    ticks = [2**power for power in range(int(np.log2(most)) + 1)]
    operations.set_yticks(ticks, list(map(str, ticks)))
    operations.minorticks_off()
    style.legend(figure, [*_keys(page), _formula_key("by the formula, with its K and c")])
    caption = (
        "Lines: walltime and operations factors for several K with c = c^ = 0, as in the paper. Points: the"
        " rows of Table 2. Left: the measured speedup with its 95% interval, and a dash where the formula "
        "puts it with the row's own K and c. Right: operations by the formula, with c^ the ratio of the "
        "models' weights; computed, not counted."
    )
    return Drawing("figure4", "Figure 4 of Leviathan et al., our measurements", caption, figure)


def _sheet(page: Page, panels: Sequence[float], height_in: float) -> Any:
    rows = len(page["table2"])
    stamp = f"{models(page)}, {', '.join(_tasks(page))}: {rows} rows of Table 2"
    return style.stamped_sheet(stamp, bool(page["synthetic"]), panels, height_in)


def _top(least: float, page: Page, names: Sequence[str]) -> float:
    """Where an axis ends: at ``least``, or above the rows' values of these names and their intervals."""
    found = [row[name] for row in page["table2"] for name in names if row[name] is not None]
    values = [max(one["estimate"], one["high"] or 0.0) if isinstance(one, dict) else one for one in found]
    return float(max([least, *(1.05 * value for value in values)]))


def _curves(axes: Axes, formula: Callable[[float, int], float], top: float, at: float | None = None) -> None:
    """One line per K, named on the line where it passes ``at``, or at the right of the panel."""
    for number, k in enumerate(_KS):
        values = np.asarray([formula(float(alpha), k) for alpha in _ALPHAS])
        color = _shade(number, len(_KS))
        axes.plot(_ALPHAS, values, color=color, lw=1.1)
        if at is None:
            height = min(float(values[-1]), top)
            axes.annotate(
                f"K={k}",
                (1.0, height),
                (3, -3),
                textcoords="offset points",
                fontsize=style.SMALL_PT,
                color=color,
                annotation_clip=False,
            )
        else:
            _name(axes, f"K={k}", at, float(np.interp(at, _ALPHAS, values)), color)


def _name(axes: Axes, text: str, x: float, y: float, color: str) -> None:
    """The name of a line, on it."""
    box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8}
    axes.text(x, y, text, fontsize=style.SMALL_PT, color=color, ha="center", va="center", bbox=box)


def _predicted(axes: Axes, row: WalltimeRow, value: float | None, measured: Estimate | None) -> None:
    """A dash at the formula's value, and a line from it to what was measured: the residual."""
    alpha = row["alpha"]
    if alpha is None or value is None:
        return
    x = alpha["estimate"]
    axes.plot(x, value, "_", color=style.INK, ms=7, zorder=4)
    if measured is not None:
        axes.plot([x, x], [value, measured["estimate"]], color=style.INK, lw=0.6, linestyle=style.DASHES[4])


def _shade(number: int, count: int) -> str:
    """From light to dark: lines in order, apart from the colours of points."""
    level = int(0xC4 - (0xC4 - 0x60) * number / max(count - 1, 1))
    return f"#{level:02x}{level:02x}{level:02x}"


def _point(axes: Axes, page: Page, row: WalltimeRow, value: Estimate | None) -> None:
    """A row of Table 2: colour by draft, marker by task, hollow at temperature 1."""
    alpha = row["alpha"]
    if alpha is None or value is None:
        return
    color = style.SERIES[_drafts(page).index(row["draft"]) % len(style.SERIES)]
    marker = style.MARKERS[_tasks(page).index(row["task"]) % len(style.MARKERS)]
    axes.errorbar(
        alpha["estimate"],
        value["estimate"],
        xerr=_bars(alpha),
        yerr=_bars(value),
        color=color,
        marker=marker,
        mfc=style.PAPER if row["temperature"] else color,
        markersize=4.5,
        elinewidth=0.9,
        linestyle="",
        zorder=5,
    )


def _bars(found: Estimate) -> Floats | None:
    """[2, 1] how far the ends are from the estimate; None without an interval."""
    if found["low"] is None or found["high"] is None:
        return None
    estimate = found["estimate"]
    return np.array([[estimate - found["low"]], [found["high"] - estimate]]).clip(0.0)


def _over_alpha(axes: Axes, title: str, label: str, top: float) -> None:
    axes.set_title(title)
    axes.set_xlabel("alpha (acceptance rate)")
    axes.set_ylabel(label)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, top)


def _drafts(page: Page) -> list[str]:
    return list(dict.fromkeys(row["draft"] for row in page["table2"]))


def _tasks(page: Page) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in page["table2"]))


def _keys(page: Page) -> list[Any]:
    drafts = [
        style.key(name, color=style.SERIES[number % len(style.SERIES)], marker="o", linestyle="")
        for number, name in enumerate(_drafts(page))
    ]
    tasks = [
        style.key(name, color=style.FAINT, marker=style.MARKERS[number % len(style.MARKERS)], linestyle="")
        for number, name in enumerate(_tasks(page))
    ]
    hollow = style.key("T = 1 (filled: T = 0)", color=style.FAINT, marker="o", mfc="w", linestyle="")
    return [*drafts, *tasks, hollow]


def _formula_key(label: str) -> Any:
    return style.key(label, color=style.INK, marker="_", linestyle="")


def _bound_key() -> Any:
    return style.key("K without limit", color=style.FAINT, linestyle=style.DASHES[4], lw=0.9)

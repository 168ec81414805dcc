"""Figures of the simulation: Figure 1 of Chen et al. 2023 for any alpha, c and K, and the speedup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.records import Interval
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, Plate, printed
from spsbench.simulate.loops import SEQUENCE
from spsbench.simulate.study import Point, Question, World
from spsbench.simulate.summary import name_of, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMULA_DASH = (0, (5, 2))
_APART = 0.12
"""Between marks of the same K, in units of K."""


def plates(question: Question, worlds: Sequence[World]) -> list[Plate]:
    """Both figures."""
    with style.quiet():
        return [printed(draw(question, worlds)) for draw in (_figure1, _speedup)]


def _figure1(question: Question, worlds: Sequence[World]) -> Drawing:
    figure, (time, share, loop) = style.stamped_sheet(title(question), True, (1, 1, 1), 3.1)
    ks = [0, *question.ks]
    time.set_title(f"Time for {SEQUENCE} tokens")
    time.set_ylabel("time (target steps)")
    time.plot(0, SEQUENCE, "o", color=style.FAINT)
    for index, world in enumerate(worlds):
        spread = [point.sequence_time for point in world.points]
        means, deviations = zip(*spread, strict=True)
        _bars(time, world, index, means, np.asarray([deviations, deviations]), len(worlds))
        _line(time, world, index, lambda point: SEQUENCE * point.cost / point.formula, _FORMULA_DASH)
    _shares(share, worlds)
    loop.set_title("Loop time")
    loop.set_ylabel("time (target steps)")
    loop.plot(ks, [1.0 + k * question.cost for k in ks], color=style.INK, marker="o", markersize=3.8)
    for axes in (time, share, loop):
        style.over_k(axes, ks)
        axes.set_ylim(bottom=0)
    style.legend(figure, _keys(worlds))
    return Drawing("figure1", "Figure 1 of Chen et al. 2023, simulated", _FIGURE1, figure)


def _shares(axes: Axes, worlds: Sequence[World]) -> None:
    axes.set_title("r'")
    axes.set_ylabel("(accepted + 1) / (K + 1)")
    axes.plot(0, 1, "o", color=style.FAINT)
    for index, world in enumerate(worlds):
        _intervals(axes, world, index, lambda point: point.r_prime, len(worlds))
        _line(axes, world, index, lambda point: point.formula / (point.k + 1), _FORMULA_DASH)
        _exact(axes, world, index, lambda point: point.k + 1.0)


_FIGURE1 = (
    f"Left: time for {SEQUENCE} tokens, mean and standard deviation over simulated sequences. Middle: "
    "accepted tokens + 1 of a loop over K + 1, with 95% intervals. Right: 1 + K c. K = 0 is ArS. No model "
    "was run: a loop's time is c for each draft token and 1 for the target."
)


def _speedup(question: Question, worlds: Sequence[World]) -> Drawing:
    figure, (tokens, gain) = style.stamped_sheet(title(question), True, (1, 1), 3.1)
    tokens.set_title("Tokens per loop")
    tokens.set_ylabel("tokens per loop")
    gain.set_title("Speedup, with the chosen c")
    gain.set_ylabel("speedup (x)")
    gain.axhline(1.0, color=style.FAINT, linewidth=0.9)
    for index, world in enumerate(worlds):
        _intervals(tokens, world, index, lambda point: point.simulated.tokens_per_loop, len(worlds))
        _intervals(gain, world, index, lambda point: point.speedup, len(worlds))
        _line(tokens, world, index, lambda point: point.formula, _FORMULA_DASH)
        _line(gain, world, index, lambda point: point.formula / point.cost, _FORMULA_DASH)
        _exact(tokens, world, index, lambda point: 1.0)
        _exact(gain, world, index, lambda point: point.cost)
    for axes in (tokens, gain):
        style.over_k(axes, question.ks)
        axes.set_ylim(bottom=0)
    style.legend(figure, _keys(worlds))
    return Drawing("simulation", "Theory against simulation", _SPEEDUP, figure)


_SPEEDUP = (
    "Points: simulated loops with 95% intervals. Dashed: (1 - alpha^(K+1)) / (1 - alpha), which takes the "
    "tests of a loop as independent. Solid: exact for these tables."
)


def _bars(axes: Axes, world: World, index: int, means: Sequence[float], ends: Any, worlds: int) -> None:
    look = style.look(index) | {"linestyle": ""}
    places = [point.k + _APART * (2 * index + 1 - worlds) for point in world.points]
    axes.errorbar(places, means, yerr=ends, elinewidth=0.9, markersize=3.8, **look)


def _intervals(axes: Axes, world: World, index: int, value: Callable[[Point], Interval], worlds: int) -> None:
    found = [value(point) for point in world.points]
    estimates = [each.estimate for each in found]
    below = [0.0 if each.low is None else each.estimate - each.low for each in found]
    above = [0.0 if each.high is None else each.high - each.estimate for each in found]
    _bars(axes, world, index, estimates, np.asarray([below, above]), worlds)


def _line(axes: Axes, world: World, index: int, value: Callable[[Point], float], dash: Any) -> None:
    color = style.look(index)["color"]
    points = [(point.k, value(point)) for point in world.points]
    axes.plot(*zip(*points, strict=True), color=color, linestyle=dash, linewidth=1.2)


def _exact(axes: Axes, world: World, index: int, over: Callable[[Point], float]) -> None:
    """The exact value over something of the point, where there is one."""
    color = style.look(index)["color"]
    points = [(point.k, point.exact / over(point)) for point in world.points if point.exact is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=color, linewidth=1.2)


def _keys(worlds: Sequence[World]) -> list[Any]:
    looks = [style.look(index) | {"linestyle": ""} for index in range(len(worlds))]
    keys = [style.key(name_of(world), **look) for world, look in zip(worlds, looks, strict=True)]
    keys.append(style.key("formula", color=style.INK, linestyle=_FORMULA_DASH, linewidth=1.2))
    if any(point.exact is not None for world in worlds for point in world.points):
        keys.append(style.key("exact", color=style.INK, linewidth=1.2))
    return keys

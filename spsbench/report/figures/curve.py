"""Acceptance length against K, with intervals that hold at once."""

from __future__ import annotations

from collections.abc import Mapping

from spsbench.records import Interval
from spsbench.report.figures.style import (
    Drawing,
    Plate,
    key,
    legend,
    look,
    name_axes,
    over_k,
    printed,
    quiet,
    stamped_sheet,
)


def acceptance(
    curves: Mapping[str, Mapping[int, Interval]], stamp: str, *, synthetic: bool, caption: str
) -> Plate:
    """One line for each curve, its interval as a band where there is one."""
    with quiet():
        figure, (axes,) = stamped_sheet(stamp, synthetic, [1.0], 3.4)
        for index, points in enumerate(curves.values()):
            style, ks = look(index), list(points)
            axes.plot(ks, [each.estimate for each in points.values()], **style, markersize=3.5)
            ends = [
                (k, each.low, each.high)
                for k, each in points.items()
                if each.low is not None and each.high is not None
            ]
            if ends:
                at, low, high = zip(*ends, strict=True)
                axes.fill_between(at, low, high, color=style["color"], alpha=0.18, linewidth=0)
        over_k(axes, sorted({k for points in curves.values() for k in points}))
        name_axes(axes, "Acceptance length", "tokens per loop")
        axes.set_xlabel("lookahead K (tokens)")
        legend(figure, [key(name, **look(index)) for index, name in enumerate(curves)])
        return printed(Drawing("acceptance", "Acceptance length against K", caption, figure))

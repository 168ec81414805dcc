"""Acceptance length against K, with intervals that hold at once."""

from __future__ import annotations

from collections.abc import Mapping

from spsbench.base.records import Interval
from spsbench.report.figures import style


def acceptance(
    curves: Mapping[str, Mapping[int, Interval]], stamp: str, *, synthetic: bool, caption: str
) -> style.Plate:
    """Draw one line for each curve, its interval as a band where there is one."""
    with style.quiet():
        figure, (axes,) = style.stamped_sheet(stamp, synthetic, [1.0], 3.4)
        for index, points in enumerate(curves.values()):
            line, ks = style.look(index), list(points)
            axes.plot(ks, [point.estimate for point in points.values()], **line, markersize=3.5)
            ends = [
                (k, point.low, point.high)
                for k, point in points.items()
                if point.low is not None and point.high is not None
            ]
            if ends:
                at, low, high = zip(*ends, strict=True)
                axes.fill_between(at, low, high, color=line["color"], alpha=0.18, linewidth=0)
        style.over_k(axes, sorted({k for points in curves.values() for k in points}))
        style.name_axes(axes, "Acceptance length", "tokens per loop")
        axes.set_xlabel("lookahead K (tokens)")
        style.legend(figure, [style.key(name, **style.look(index)) for index, name in enumerate(curves)])
        return style.printed(style.Drawing("acceptance", "Acceptance length against K", caption, figure))

"""The run in pictures; every figure is a pure function of what the run recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spsbench.report.figures import loops, speed
from spsbench.report.figures.style import Drawing, FigureSkipped, Plate, printed, quiet, stacked
from spsbench.report.measured import Measured

__all__ = ["Gallery", "Plate", "draw"]

_FIGURES: dict[str, Callable[[Measured], Drawing]] = {
    "Speedup by arm": speed.by_arm,
    "Figure 1": speed.figure1,
    "Speedup against K": speed.against_k,
    "Where a loop's time goes": loops.phases,
    "Acceptance": loops.positions,
    "Tokens per loop": loops.lengths,
    "Tokens per loop by replay": loops.replayed,
    "Tails": loops.tails,
}

_OF_BATCHES: dict[str, Callable[[Measured], Drawing]] = {"Speedup against batch size": speed.against_batch}

_MIXED = "the run was measured under several conditions, whose times are not pooled"


@dataclass(frozen=True, slots=True)
class Gallery:
    """What could be drawn and what could not."""

    plates: tuple[Plate, ...]
    left_out: tuple[tuple[str, str], ...]


def draw(measured: Measured, *, narrow: bool = False) -> Gallery:
    """Every figure that the run has the data for."""
    if measured.summary.get("conditions"):
        return Gallery((), tuple((title, _MIXED) for title in _FIGURES))
    plates, left_out = [], []
    figures = _FIGURES | (_OF_BATCHES if measured.summary.get("surfaces") else {})
    with quiet():
        for title, figure in figures.items():
            try:
                plates.append(_printed(figure, measured, narrow))
            except FigureSkipped as reason:
                left_out.append((title, str(reason)))
    return Gallery(tuple(plates), tuple(left_out))


def _printed(figure: Callable[[Measured], Drawing], measured: Measured, narrow: bool) -> Plate:
    beside = figure(measured)
    if not narrow:
        return printed(beside)
    with stacked():
        return printed(beside, figure(measured))

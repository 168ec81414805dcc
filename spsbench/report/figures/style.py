"""How figures look, what they are, and how they become PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.errors import SpsbenchError
from spsbench.report.measured import Measured
from spsbench.report.wording import title
from spsbench.store.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure as matplotlib knows it.

    Attributes:
        name: of its files, e.g. ``figure1``.
        title: a few words.
        caption: what one sees, with the caveats that belong to it.
        figure: ready to be printed.
    """

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Plate:
    """A printed figure: see ``Drawing``, with the bytes of its files."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: str


class FigureSkipped(Exception):
    """A figure cannot be drawn from this run; the message is the reason, without a full stop."""


WIDTH_IN = 8.0
"""Of a whole figure: at 100 dots an inch as wide as the text of a README."""

INK, FAINT, RULE, PAPER = "#24292f", "#6e7781", "#d8dee4", "#ffffff"
SERIES = ("#1f4e79", "#d9822b", "#5f9e6e", "#9a6fb0", "#b0485c", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 3)))
TONES = ("#1e4d78", "#5b8db8", "#e8b46a", "#dfdfd8")
"""Of the parts of a loop, dark to light."""

_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 8.5,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.4,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",  # text stays text; it only gets narrower in other type than this wide one
    "svg.hashsalt": "spsbench",  # the same run gives the same bytes
}


@contextmanager
def quiet() -> Iterator[None]:
    """Draw and save in this style, whatever the reader's own settings are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def sheet(measured: Measured, panels: Sequence[float], height_in: float = 2.9) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per given width, side by side, stamped with what it shows.

    Args:
        measured: names the task; synthetic data is called so on the figure itself.
        panels: relative widths. A single panel is drawn at two thirds of the full width.
        height_in: inches.
    """
    summary = measured.summary
    prompts = max((row["prompts"] for row in summary["rows"]), default=0)
    pair = f"pair {summary['pair']}, " if summary.get("pair") else ""
    text = f"{title(summary)}, {pair}{prompts} prompts"
    return stamped_sheet(text, bool(summary.get("synthetic")), panels, height_in)


def stamped_sheet(
    stamp: str, synthetic: bool, panels: Sequence[float], height_in: float = 2.9
) -> tuple[Figure, list[Axes]]:
    """``sheet`` for what is no run.

    Args:
        stamp: what is shown, at the foot.
        synthetic: a box says that the data is.
        panels, height_in: see ``sheet``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = WIDTH_IN if len(panels) > 1 else WIDTH_IN * 0.66
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06, rect=(0, 0.07, 1, 0.93))
    figure = Figure(figsize=(width, height_in), layout=layout)
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=list(panels))[0]
    figure.text(0.008, 0.012, stamp, fontsize=7.5, color=FAINT, va="bottom")
    if synthetic:
        box = {"boxstyle": "round,pad=0.25", "facecolor": PAPER, "edgecolor": FAINT, "linewidth": 0.7}
        figure.text(
            *(0.992, 0.018, "SYNTHETIC"), fontsize=6.5, color=FAINT, va="bottom", ha="right", bbox=box
        )
    return figure, list(axes)


def over_k(axes: Axes, ks: Sequence[int]) -> None:
    """An axis of lookaheads: whole numbers, every one that was measured if there is room."""
    axes.set_xlabel("K")
    axes.set_xticks(list(ks) if len(ks) <= 12 else list(ks)[:: len(ks) // 8])
    axes.set_xlim(min(ks) - 0.45, max(ks) + 0.45)


def places(axes: Axes, ks: Sequence[int]) -> None:
    """One place per lookahead for bars, in the middle where there are few."""
    axes.set_xlabel("K")
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    margin = 0.6 + max(0.0, (3 - len(ks)) / 2)
    axes.set_xlim(-margin, len(ks) - 1 + margin)


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series with this index."""
    kind = index % len(SERIES)
    return {"color": SERIES[kind], "marker": MARKERS[kind], "linestyle": DASHES[kind]}


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Above the panels, in as few lines as the figure's width allows; nothing without entries."""
    for columns in range(min(6, len(handles)), 0, -1):
        drawn = figure.legend(handles=list(handles), loc="outside upper left", ncols=columns)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


def key(label: str, **line: Any) -> Any:
    """A legend entry drawn as a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **line)


DOTS_PER_INCH = 200

_VARIABLES = {INK: "ink", FAINT: "faint", RULE: "rule", PAPER: "paper"}
_VARIABLES |= {color: f"tone-{index}" for index, color in enumerate(TONES)}
_VARIABLES |= {color: f"series-{index}" for index, color in enumerate(SERIES)}


def printed(drawing: Drawing) -> Plate:
    """The figure as PNG and SVG, without date or version: the same run gives the same bytes."""
    figure = drawing.figure
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=DOTS_PER_INCH, metadata={"Software": "spsbench"})
    figure.set_layout_engine("none")  # everything has found its place
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "spsbench"})
    return Plate(drawing.name, drawing.title, drawing.caption, png.getvalue(), svg.getvalue().decode())


def save(plate: Plate, folder: Path) -> None:
    """Write a figure as SVG and PNG.

    Raises:
        SpsbenchError: the folder cannot be written to.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as problem:
        raise SpsbenchError(f"{folder} cannot be made ({problem.strerror}).") from problem
    for ending, content in (("svg", plate.svg.encode()), ("png", plate.png)):
        with replacing(folder / f"{plate.name}.{ending}") as new:
            new.write_bytes(content)


def inline(plate: Plate, prefix: str = "") -> str:
    """The figure as an SVG element whose colours are variables of the page (``--ink``, ``--series-0``...).

    Its text stays text, so that it can be read aloud and searched. ``prefix`` keeps the ids of several
    runs on one page apart.
    """
    text = plate.svg[plate.svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}{plate.name}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable}, {color.upper()})")
    return re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', _opening(plate), text, count=1)


def _opening(plate: Plate) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="\\1" role="img" aria-label="{plate.title}">'
    )

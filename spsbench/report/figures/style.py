"""How figures look, what they are, and how they become PNG, SVG and PDF."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.files import replacing
from spsbench.report.facts import prompts
from spsbench.report.measured import Measured
from spsbench.report.wording import counted, models, title
from spsbench.stats.conditions import times_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure as matplotlib knows it; ``name`` is that of its files, e.g. ``figure1``."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Plate:
    """A printed figure: see ``Drawing``, with the content of its files."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: str
    pdf: bytes
    narrow_svg: str = ""


class FigureSkipped(Exception):
    """A figure cannot be drawn from this run; the message is the reason, without a full stop."""


WIDTH_IN = 8.0
"""Of a whole figure: at 100 dots an inch as wide as the text of a README."""

SINGLE_IN, NARROW_IN = 5.28, 3.4
"""Of a figure with one panel, and of panels one below another."""

SMALL_PT = 8.0
"""The smallest text of a figure: 9 px where the narrow figure is 280 px wide."""

_STACKED: ContextVar[bool] = ContextVar("stacked", default=False)
_MOST_BESIDE = 3
_STACKED_HEIGHT, _STACKED_LEGEND_IN = 0.78, 0.55
_LINE_IN = 0.17
_STAMP_CHARACTERS_PER_INCH, _SYNTHETIC_IN = 13.0, 0.85
_TITLE_CHARACTERS_PER_INCH = 11.5

INK, FAINT, RULE, PAPER = "#24292f", "#6e7781", "#d8dee4", "#ffffff"
SERIES = ("#1f4e79", "#d9822b", "#5f9e6e", "#9a6fb0", "#b0485c", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 3)))
TONES = ("#1e4d78", "#5b8db8", "#e8b46a", "#dfdfd8")
"""Of the parts of a loop, dark to light."""

NO_INTERVAL = "////"
"""Hatch of a bar whose value has no interval."""

_SIZED = ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
_RC = {
    **dict.fromkeys(_SIZED, 8.5),
    **dict.fromkeys(("text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.7),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "errorbar.capsize": 2,
    "legend.handlelength": 2.4,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",  # text stays text; it only gets narrower in other type than this wide one
    "pdf.fonttype": 42,  # text stays text here too: publishers refuse type 3
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


@contextmanager
def stacked() -> Iterator[None]:
    """Draw figures of the block with their panels one below another, ``NARROW_IN`` wide."""
    before = _STACKED.set(True)
    try:
        yield
    finally:
        _STACKED.reset(before)


_DOUBTS = {"undecided": "UNDECIDED, CPU contention: ", "disturbed": "Disturbed, CPU contention: "}


def sheet(
    measured: Measured, panels: Sequence[float], height_in: float = 2.9, most_beside: int = _MOST_BESIDE
) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel per given width, side by side, stamped with what it shows."""
    summary = measured.summary
    of_whom = f"{names}, " if (names := models(summary)) else ""
    doubt = _DOUBTS.get(times_label(summary), "")
    name = title({**summary, "law": ""})  # a line that is too long leaves no room for the axes
    text = f"{doubt}{name}, {of_whom}{counted(prompts(summary), 'prompt')}"
    return stamped_sheet(text, bool(summary.get("synthetic")), panels, height_in, most_beside)


def stamped_sheet(
    stamp: str,
    synthetic: bool,
    panels: Sequence[float],
    height_in: float = 2.9,
    most_beside: int = _MOST_BESIDE,
) -> tuple[Figure, list[Axes]]:
    """``sheet`` for data that is not a run."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(panels)
    if _STACKED.get():
        rows, columns = count, 1
        width, height = NARROW_IN, _STACKED_LEGEND_IN + _STACKED_HEIGHT * height_in * count
    else:  # one size of text for all: the width of a page holds a whole figure
        rows = -(-count // most_beside)
        columns, width, height = -(-count // rows), WIDTH_IN if count > 1 else SINGLE_IN, height_in * rows
    room_in = width - (_SYNTHETIC_IN if synthetic else 0.0) - 0.1
    lines = textwrap.wrap(stamp, int(_STAMP_CHARACTERS_PER_INCH * room_in))
    foot = (_LINE_IN * len(lines) + 0.03) / height
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06, rect=(0, foot, 1, 1 - foot))
    figure = Figure(figsize=(width, height), layout=layout)
    ratios = list(panels) if rows == 1 else None
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=ratios).flatten().tolist()
    for unused in axes[count:]:
        unused.remove()
    bottom = 0.035 / height
    small: dict[str, Any] = {"fontsize": SMALL_PT, "color": FAINT, "va": "bottom"}
    figure.text(0.008, bottom, "\n".join(lines), **small)
    if synthetic:
        box = {"boxstyle": "round,pad=0.2", "facecolor": PAPER, "edgecolor": FAINT, "linewidth": 0.7}
        figure.text(0.988, bottom + 0.02 / height, "SYNTHETIC", ha="right", bbox=box, **small)
    return figure, axes[:count]


def name_axes(axes: Axes, title: str, y: str, x: str = "") -> None:
    """Give a panel its title, and its axes their quantities and units."""
    axes.set_title(title)
    axes.set_ylabel(y)
    if x:
        axes.set_xlabel(x)


def same_top(panels: Sequence[Axes], factor: float = 1.0) -> None:
    """Scale all panels from 0 to the highest of their tops."""
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, factor * top)


def label_beside(panels: Sequence[Axes], label: str) -> None:
    """Label the vertical axes of panels that share their scale: in a row the first speaks for all."""
    for number, axes in enumerate(panels):
        first = number == 0 or _STACKED.get()
        axes.set_ylabel(label if first else "")
        axes.tick_params(labelleft=first)


K_LABEL = "lookahead K (tokens)"


def over_k(axes: Axes, ks: Sequence[int]) -> None:
    """Label an axis of lookaheads with whole numbers: every measured one if there is room."""
    axes.set_xlabel(K_LABEL)
    axes.set_xticks(list(ks) if len(ks) <= 12 else list(ks)[:: len(ks) // 8])
    axes.set_xlim(min(ks) - 0.45, max(ks) + 0.45)


def places(axes: Axes, ks: Sequence[int]) -> None:
    """One place per lookahead for bars, in the middle where there are few."""
    axes.set_xlabel(K_LABEL)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    margin = 0.6 + max(0.0, (3 - len(ks)) / 2)
    axes.set_xlim(-margin, len(ks) - 1 + margin)


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series with this index."""
    kind, again = index % len(SERIES), index // len(SERIES)
    marker = MARKERS[(kind + again) % len(MARKERS)]  # a colour that comes again has another marker
    return {"color": SERIES[kind], "marker": marker, "linestyle": DASHES[kind]}


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Put the legend above the panels, in as few lines as the width allows; nothing without entries."""
    for columns in range(min(6, len(handles)), 0, -1):
        drawn = figure.legend(handles=list(handles), loc="outside upper left", ncols=columns)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


def key(label: str, **line: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **line)


def patch(label: str, **look: Any) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=label, **look)


_VARIABLES = {INK: "ink", FAINT: "faint", RULE: "rule", PAPER: "paper"}
_VARIABLES |= {color: f"tone-{index}" for index, color in enumerate(TONES)}
_VARIABLES |= {color: f"series-{index}" for index, color in enumerate(SERIES)}


def printed(drawing: Drawing, narrow: Drawing | None = None) -> Plate:
    """Print the figure as PNG, SVG and PDF, without date or version: the same run gives the same bytes."""
    name = {"Creator": "spsbench"}
    svgs = []
    for figure in (each.figure for each in (drawing, narrow) if each is not None):
        _wrap_titles(figure)
        figure.draw_without_rendering()  # everything finds its place
        _wrap_labels(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # a stand-in for one has every file laid out before it is written
        for axes in figure.axes:  # the last digits of the layout's solver differ between processes
            x, y, width, height = axes.get_position().bounds
            axes.set_position((round(x, 6), round(y, 6), round(width, 6), round(height, 6)))
        svgs.append(_saved(figure, "svg", {"Date": None, **name}).decode())
    png = _saved(drawing.figure, "png", {"Software": "spsbench"}, dpi=200)
    pdf = _saved(drawing.figure, "pdf", {"CreationDate": None, **name, "Producer": None})
    return Plate(drawing.name, drawing.title, drawing.caption, png, svgs[0], pdf, *svgs[1:])


def _saved(figure: Figure, kind: str, metadata: dict[str, Any], **more: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, metadata=metadata, **more)
    return file.getvalue()


def _wrap_titles(figure: Figure) -> None:
    """Break the titles of panels that are wider than their panel."""
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        columns = spec.get_gridspec().ncols if spec else 1
        room = int(_TITLE_CHARACTERS_PER_INCH * (figure.get_figwidth() / columns - 0.5))
        axes.set_title(textwrap.fill(axes.get_title(loc="left"), room))


def _wrap_labels(figure: Figure) -> None:
    """Break axis labels that, as drawn, are longer than their axis."""
    for axes in figure.axes:
        box = axes.get_window_extent()
        for label, room in ((axes.xaxis.label, box.width), (axes.yaxis.label, box.height)):
            drawn = label.get_window_extent()
            length = drawn.width if label is axes.xaxis.label else drawn.height
            if (text := label.get_text()) and length > room:
                label.set_text(textwrap.fill(text, max(8, int(len(text) * room / length))))


def save(plate: Plate, directory: Path, folder: str = ".") -> None:
    """Write a figure as SVG, PNG and PDF, into a folder of the directory where one is named."""
    for ending, content in (("svg", plate.svg.encode()), ("png", plate.png), ("pdf", plate.pdf)):
        with replacing(directory / folder / f"{plate.name}.{ending}", directory) as new:
            new.write(content)


def inline(plate: Plate, prefix: str = "", *, narrow: bool = False) -> str:
    """Return the figure as an SVG element whose colours are variables of the page (``--ink``,
    ``--series-0``...).

    Its text stays text, so that it can be read aloud and searched. ``prefix`` keeps the ids of several
    runs on one page apart. Empty where panels one below another were asked for and not drawn.
    """
    svg = plate.narrow_svg if narrow else plate.svg
    if not svg:
        return ""
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    ids = f"{prefix}{plate.name}-{'n-' if narrow else ''}"
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{ids}", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable}, {color.upper()})")
    view = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', text)
    assert view is not None
    points = view[1].split()[2]  # the width of the drawing, which the page multiplies by its one scale
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view[1]}" role="img" aria-label="{escape(plate.title)}" style="--points: {points}">'
    )
    return text[: view.start()] + opening + text[view.end() :]

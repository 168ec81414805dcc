"""From a drawing to the bytes of its files, and to SVG inside a page."""

from __future__ import annotations

import io
import re
from pathlib import Path

from spsbench.errors import SpsbenchError
from spsbench.report.figures.plate import Drawing, Plate
from spsbench.report.figures.style import FAINT, INK, PAPER, RULE, SERIES, TONES
from spsbench.store.files import replacing

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

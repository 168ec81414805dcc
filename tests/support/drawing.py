"""Figures at less cost, for tests that do not look at every file: printing them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from spsbench.report import figures
from spsbench.report.figures import style

FIGURES = figures.FIGURES


def no_figures() -> AbstractContextManager[object]:
    """None of a run's figures is drawn."""
    return patch.object(figures, "FIGURES", {})


def all_figures() -> AbstractContextManager[object]:
    """They are again, within ``no_figures``."""
    return patch.object(figures, "FIGURES", FIGURES)


@contextmanager
def as_svg() -> Iterator[None]:
    """Figures are written as SVG alone, as a page shows them; PNG and PDF, a third of the time, are empty."""
    saved = style._saved

    def written(figure: Any, kind: str, metadata: dict[str, Any], **more: Any) -> bytes:
        return saved(figure, kind, metadata, **more) if kind == "svg" else b""

    with patch.object(style, "_saved", written):
        yield


@contextmanager
def unprinted() -> Iterator[None]:
    """Figures are made, with title and caption, and all their files are empty."""

    def plate(drawing: style.Drawing, narrow: style.Drawing | None = None) -> style.Plate:
        return style.Plate(drawing.name, drawing.title, drawing.caption, b"", "", b"")

    with patch.object(figures, "printed", plate):
        yield

"""Figures at less cost, for tests that do not look at every file: printing them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spsbench.report import figures
from spsbench.report.figures import style


@contextmanager
def as_svg() -> Iterator[None]:
    """Figures are written as SVG alone, as a page shows them; PNG and PDF, a third of the time, are empty."""
    saved = style._saved

    def written(figure: Any, kind: str, metadata: dict[str, Any], **more: Any) -> bytes:
        return saved(figure, kind, metadata, **more) if kind == "svg" else b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "_saved", written)
        yield


@contextmanager
def unprinted() -> Iterator[None]:
    """Figures are made, with title and caption, and all their files are empty."""

    def plate(drawing: style.Drawing, narrow: style.Drawing | None = None) -> style.Plate:
        return style.Plate(drawing.name, drawing.title, drawing.caption, b"", "", b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "printed", plate)
        yield

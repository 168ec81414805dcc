"""report.html: one file that needs no network, in light and dark."""

from __future__ import annotations

from spsbench.report.html.page import page

__all__ = ["page"]

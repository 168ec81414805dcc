"""Summaries written by hand."""

from __future__ import annotations

from support.summaries import make_row, make_summary  # noqa: F401

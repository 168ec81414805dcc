"""Summaries written by hand."""

from __future__ import annotations

from support.summaries import (  # noqa: F401
    failed_row,
    make_comparison,
    make_judged_arm,
    make_kind,
    make_row,
    make_summary,
    make_verdict,
)

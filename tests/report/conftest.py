"""Summaries written by hand, and the figures that are tested here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.drawing import all_figures
from support.summaries import (  # noqa: F401
    failed_row,
    make_comparison,
    make_judged_arm,
    make_kind,
    make_row,
    make_summary,
    make_verdict,
)


@pytest.fixture(scope="module", autouse=True)
def _drawn() -> Iterator[None]:
    with all_figures():
        yield

"""``summary.json``: its one writer and its one reader."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from spsbench import files
from spsbench.store import opening
from spsbench.summary_types import Summary

SUMMARY_FILE = "summary.json"


def write_summary(directory: Path, summary: Summary) -> None:
    """Write ``summary.json``, with the schema version that the summary carries; NaN becomes null."""
    files.write_json(directory / SUMMARY_FILE, summary)


def read_summary(directory: Path) -> Summary:
    """What ``summary.json`` says; one that an earlier version wrote may lack keys that were added since."""
    return cast("Summary", opening.checked_schema(directory / SUMMARY_FILE))

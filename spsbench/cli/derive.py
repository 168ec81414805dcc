"""Results of a run, derived afresh from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spsbench.analysis.summary import summarise
from spsbench.cli.console import say
from spsbench.errors import SpsbenchError, UsageError
from spsbench.report.markdown import render
from spsbench.store import RunStore


def derive(directory: Path) -> dict[str, Any]:
    """Summary of a run, finished or not; writes ``summary.json`` and ``report.md`` if that can be done.

    Raises:
        UsageError: the directory holds no run.
    """
    with RunStore.open(directory) as store:
        frames, info = store.frames(), store.run_info() | _remembered(store)
        summary = summarise(frames.samples, frames.loops, info)
        try:
            store.write_summary(summary)
            store.write_report(render(summary, info))
        except SpsbenchError as problem:  # someone else's run can be looked at all the same
            say(f"Not written: {problem}")
    return summary


def _remembered(store: RunStore) -> dict[str, Any]:
    """What only the process that measured could know; nothing if it did not come to its end."""
    try:
        rows = store.read_summary()["rows"]
    except UsageError:
        return {}
    return {"peak_memory_bytes": {row["arm"]: row["peak_memory_bytes"] for row in rows}}

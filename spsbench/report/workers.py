"""Who measured a run that was spread over several workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from spsbench.report.tables import Table, left, right
from spsbench.summary_types import Summary

_UNTOLD = "unknown"


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """A row for each machine; nothing for a run of one process."""
    workers = run.get("workers") or []
    if not workers:
        return []
    machines = Counter(
        (
            str(worker["machine"]),
            str(worker["environment"]["cpu"]["model"] or _UNTOLD),
            str(worker["environment"]["cpu"]["usable_threads"] or _UNTOLD),
        )
        for worker in workers
    )
    columns = [left("machine"), left("CPU"), right("cores"), right("workers")]
    rows = [(*machine, str(count)) for machine, count in machines.items()]
    return ["## Workers", "", *Table(columns, rows).as_markdown()]

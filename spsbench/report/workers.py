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
    machines: dict[tuple[str, str, str], Counter[int]] = {}
    for worker in workers:
        cpu = worker["environment"]["cpu"]
        machine = (
            str(worker["machine"]),
            str(cpu["model"] or _UNTOLD),
            str(cpu["usable_threads"] or _UNTOLD),
        )
        machines.setdefault(machine, Counter())[worker.get("session", 1)] += 1
    columns = [left("machine"), left("CPU"), right("cores"), right("workers")]
    # A run that was continued had its workers again: the most that measured in one session.
    rows = [(*machine, str(max(sessions.values()))) for machine, sessions in machines.items()]
    return ["## Workers", "", *Table(columns, rows).as_markdown()]

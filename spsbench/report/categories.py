"""The result table by category of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.report import wording
from spsbench.report.naming import Naming, in_full
from spsbench.report.results import decoding
from spsbench.report.tables import Heading, Row, Table
from spsbench.summary_types import CategoryPart, Summary


def table(parts: Sequence[CategoryPart], metric: str | None, naming: Naming) -> Table:
    """The results of every arm under a heading for each category."""
    rows: list[Row | Heading] = []
    made = [(_title(part), decoding(part["rows"], metric, naming)) for part in parts]
    for title, own in made:
        groups = [row for row in own.rows if isinstance(row, Heading) and row.title]
        rows += [] if groups else [Heading(title)]
        for row in own.rows:
            if not isinstance(row, Heading):
                rows.append(row)
            elif row.title:
                rows.append(Heading(f"{title}, {row.title}"))
    return Table(made[0][1].columns, rows, names=made[0][1].names)


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The table of a run with several categories."""
    parts = summary.get("by_category") or []
    if not parts:
        return []
    made = table(parts, wording.headline_metric(summary), in_full())
    return ["## By category", "", *made.as_markdown()]


def _title(part: CategoryPart) -> str:
    name = "no category" if part["category"] is None else part["category"]
    return f"{name} ({part['prompts']} prompt{'' if part['prompts'] == 1 else 's'})"

"""Several engines in one run: both baselines, what answered for each arm, and what was not equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spsbench.axes import label
from spsbench.report import wording
from spsbench.report.naming import Naming, in_full
from spsbench.report.tables import Table, left
from spsbench.report.wording import escape
from spsbench.summary_types import ArmRow, EngineOfArm, Summary

NOTE = (
    "Speedup over the ArS of the arm's own engine, which says whether speculation pays there, and over the "
    "fastest ArS of the run, which says whether it is worth using."
)


def speculative(summary: Summary) -> list[ArmRow]:
    """The arms with two baselines: those that speculate, where the run has several engines."""
    rows = summary["rows"]
    several = len({row["engine"] for row in rows}) > 1
    return [row for row in rows if row["method"] == "sps"] if several else []


def baselines(rows: Sequence[ArmRow], naming: Naming) -> Table:
    """Each arm against the ArS of its own engine and against the fastest ArS of all."""
    columns = [
        left("over its own ArS", note="95%", whole=True),
        left("over the fastest", note="95%", whole=True),
    ]
    return naming.table(
        columns, rows, lambda row: [wording.speedup(row.get("own_speedup")), wording.speedup(row["speedup"])]
    )


def foot(summary: Summary) -> list[str]:
    """Where external engines ran with other settings, and which of their times are unknown."""
    found = summary.get("engines")
    if found is None:
        return []
    unseen = ((engine["name"], clause) for engine in found["arms"] for clause in engine["unseen"])
    return [*found["unequal"], *_by_engine(unseen)]


def section(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The report's section on engines; none for a run of one."""
    rows = speculative(summary)
    found = summary.get("engines")
    lines = ["", NOTE, "", *baselines(rows, in_full()).as_markdown()] if rows else []
    if found is not None:
        lines += ["", *_answered(summary, found["arms"]).as_markdown()]
        limits = ((engine["name"], limit) for engine in found["arms"] for limit in engine["limits"])
        notes = [*foot(summary), *_by_engine(limits)]
        lines += ["", *(f"* {escape(text)}" for text in notes)] if notes else []
    return ["## Engines", *lines] if lines else []


def _answered(summary: Summary, engines: Sequence[EngineOfArm]) -> Table:
    """What answered for each arm, in which version and by which rule."""
    rows = {row["arm"]: row for row in summary["rows"]}
    cells = [
        [
            label(rows[engine["arm"]]),
            rows[engine["arm"]]["sampling"],
            " ".join([engine["name"], engine["version"] or wording.NOTHING]),
            engine["rule"] or wording.NOTHING,
        ]
        for engine in engines
        if engine["arm"] in rows
    ]
    return Table([left("arm"), left("sampling"), left("engine and version"), left("rule")], cells)


def _by_engine(notes: Iterator[tuple[str, str]]) -> list[str]:
    """Each sentence of an engine once, however many arms it answers for."""
    return list(dict.fromkeys(f"{name}: {text.rstrip('.')}." for name, text in notes))

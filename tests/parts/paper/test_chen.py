"""The page of Chen et al. from summaries written by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from spsbench.parts.paper.report import gather_chen, render_chen, screen_chen


def shown(page: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen_chen(page))
    return console.export_text()


def test_whichever_part_is_synthetic_the_page_and_that_part_say_so(make_summary: Any) -> None:
    real = make_summary(task_label="xsum", synthetic=False)
    page = gather_chen({"table1-a": ("A", real), "table1-b": ("B", make_summary(task_label="humaneval"))}, {})
    text = render_chen(page)
    assert "(synthetic)" in text.splitlines()[0]
    assert "* [A](table1-a/report.md): xsum, 50 prompts" in text
    assert "* [B](table1-b/report.md): humaneval (synthetic), 50 prompts" in text
    assert {row["benchmark"] for row in page["table1"]} == {"xsum", "humaneval (synthetic)"}
    assert "(synthetic)" in shown(page)
    assert "synthetic" not in render_chen(gather_chen({"table1-a": ("A", real)}, {}))


def test_times_that_decide_nothing_are_called_so(make_summary: Any) -> None:
    contention = {"trusted": False, "reasons": ["others computed"], "lost_by_arm": {"ars": 0.31}}
    busy = make_summary(contention=contention, verdict=None)
    text = render_chen(gather_chen({"table1-a": ("A", busy)}, {}))
    assert "UNDECIDED: CPU contention took 31% of the time measured" in text

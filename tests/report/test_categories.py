"""The table by category on the screen, in report.md and on the page, and what a prompts file left out."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

from rich.console import Console
from support.synthetic_run import gallery, measured

from spsbench.report.html import page
from spsbench.report.sections import render, show
from spsbench.store.summary_types import CategoryPart, CategoryRow, Summary


def row(arm: Any, **changes: Any) -> CategoryRow:
    names = CategoryRow.__annotations__
    made: Any = {name: value for name, value in arm.items() if name in names}
    return made | changes


def with_categories(**changes: Any) -> Summary:
    summary = copy.deepcopy(measured(ks=(0, 4), samplings=("nucleus",)).summary)
    ars, sps = summary["rows"]
    few = {"speedup": {"ratio": 1.5, "low": None, "high": None}, "metrics": {}}
    parts: list[CategoryPart] = [
        {"category": "co<b>de", "prompts": 11, "rows": [row(ars), row(sps)]},
        {"category": None, "prompts": 1, "rows": [row(ars, metrics={}), row(sps, **few)]},
    ]
    made: Any = {**summary, "by_category": parts, **changes}
    return made


def screen(summary: Summary) -> str:
    file = io.StringIO()
    show(summary, Console(file=file, width=80, no_color=True))
    return file.getvalue()


def test_the_screen_has_a_row_per_category_and_arm() -> None:
    text = screen(with_categories())
    table = text[text.index("By category.") :]
    assert table.index("co<b>de (11 prompts)") < table.index("no category (1 prompt)")
    last = table[table.index("no category") :].splitlines()
    assert last[1].split()[:3] == ["ArS", "nucleus", "-"]
    assert "1.50x" in last[2]
    assert "[" not in last[2]
    assert max(map(len, text.splitlines())) <= 80


def test_many_arms_are_named_by_what_sets_them_apart() -> None:
    summary = with_categories()
    for rows in (summary["rows"], *(part["rows"] for part in summary["by_category"])):
        long = {**rows[1], "drafter": "lookup:max_n=4:min_n=2", "arm": "other"}
        rows.append(long)  # type: ignore[arg-type]
    text = screen(summary)
    assert "…" not in text
    assert "co<b>de (11 prompts)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_report_and_the_page_have_the_same_table() -> None:
    summary = with_categories()
    lines = render(summary, {}).splitlines()
    assert "## By category" in lines
    assert "| co&lt;b&gt;de (11 prompts) |  |  |  |  |  |" in lines
    shown = page([(replace(measured(ks=(0, 4), samplings=("nucleus",)), summary=summary), gallery())])
    assert "no category (1 prompt)" in shown
    assert "co<b>de" not in shown


def test_a_run_without_categories_has_no_such_table() -> None:
    assert "category" not in screen(with_categories(by_category=[]))
    assert "By category" not in render(with_categories(by_category=[]), {})


def test_a_summary_of_an_earlier_version_has_none_either() -> None:
    earlier: Any = {name: value for name, value in with_categories().items() if name != "by_category"}
    assert "category" not in screen(earlier)
    assert "By category" not in render(earlier, {})


def test_what_a_prompts_file_left_out_is_said() -> None:
    told = with_categories(data={"source": "p.jsonl", "later_turns": 3, "unasked": 2})
    assert "as the file has no answer before them: 3;" in " ".join(screen(told).split())
    assert "conversations that no user begins: 2." in render(told, {})
    nothing = with_categories(data={"source": "p.jsonl", "later_turns": 0, "unasked": 0})
    assert "Left out" not in screen(nothing)


def test_references_that_rouge_cannot_read_leave_no_verdict_of_parity() -> None:
    unread = with_categories(data={"unread_by_rouge": 2, "references": 2}) | {"parity": None}
    for shown in (" ".join(screen(unread).split()), render(unread, {})):
        assert "ROUGE cannot read 2 of 2 references, which have no score" in shown
    assert "Parity: not judged, ROUGE reads none of the references." in " ".join(screen(unread).split())

"""One table, two renderings."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spsbench.report.tables import Heading, Styled, Table, left, right


def _screen(table: Table, width: int = 80, gap: int = 2) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table.as_rich(gap=gap))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_same_cells_stand_on_the_screen_and_in_markdown() -> None:
    table = Table(
        [left("arm"), right("speedup", note="95%"), right("alpha_beta", code=True)],
        [["ArS", "1x", "-"], ["SpS", Styled("1.92x [1.85, 1.99]", "green"), "0.803"]],
    )
    assert _screen(table) == [
        "arm       speedup [95%]  alpha_beta",
        "───────────────────────────────────",
        "ArS                  1x           -",
        "SpS  1.92x [1.85, 1.99]       0.803",
    ]
    assert table.width() == len("arm       speedup [95%]  alpha_beta")
    assert table.as_markdown() == [
        "| arm | speedup [95%] | `alpha_beta` |",
        "| :-- | --: | --: |",
        "| ArS | 1x | - |",
        "| SpS | 1.92x \\[1.85, 1.99\\] | 0.803 |",
    ]


def test_markdown_keeps_its_columns_whatever_titles_and_cells_hold() -> None:
    lines = Table([left("na|me"), right("value")], [["a|b", "1"], ["c\nd", "`|`"]]).as_markdown()
    assert lines[1] == "| :-- | --: |"
    for line in lines:
        assert line.replace("\\|", "").count("|") == 3


def test_text_on_the_screen_is_no_markup_and_drives_no_terminal() -> None:
    lines = _screen(Table([left("[red]a[/]"), left()], [["[bold]x[/]\x1b[2J", "one\ntwo"]]))
    assert lines[0] == "[red]a[/]"
    assert lines[2:] == ["[bold]x[/] [2J  one", "                two"]


def test_a_group_has_its_title_above_it_and_the_columns_stay_in_line() -> None:
    rows = [["ArS", "1"], Heading("a title wider than the table"), ["SpS (K=4)", "22"], Heading(), ["x", "3"]]
    table = Table([left("arm"), right("n")], rows)
    assert _screen(table) == [
        "arm         n",
        "─────────────",
        "ArS         1",
        "",
        "a title wider than the table",
        "SpS (K=4)  22",
        "",
        "x           3",
    ]
    assert table.as_markdown()[2:] == [
        "| ArS | 1 |",
        "| a title wider than the table |  |",
        "| SpS (K=4) | 22 |",
        "| x | 3 |",
    ]


def test_a_table_without_titles_has_no_head() -> None:
    assert _screen(Table([left(whole=True), left()], [["!", "text"]]), gap=1) == ["! text"]


def test_words_are_broken_over_lines_and_numbers_are_not() -> None:
    table = Table([left("what"), right("n")], [["some words", "1,234,567"]])
    assert _screen(table, width=16)[2:] == ["some   1,234,567", "words"]


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells in a table of 2 columns"):
        Table([left("a"), left("b")], [["x"]])

"""Several runs in one table."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console
from support.synthetic_run import measured

from spsbench.report import results
from spsbench.report.measured import Measured
from spsbench.report.tables import Heading, Table


def _other(**run: object) -> Measured:
    small = measured(ks=(0, 4), samplings=("nucleus",), seed=9)
    return dataclasses.replace(small, name="other", run={**small.run, **run})


def _text(*runs: Measured) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(results.side_by_side(runs))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def cells(table: Table) -> list[list[str]]:
    """The table without styles and headings."""
    rows = [row for row in table.rows if not isinstance(row, Heading)]
    return [[cell if isinstance(cell, str) else cell.text for cell in row] for row in rows]


def test_every_arm_of_every_run_has_a_row() -> None:
    table = results.several_runs([measured(), _other()], ["fixture", "other"])
    rows = cells(table)
    assert [row[0] for row in rows] == ["fixture"] * 8 + ["other"] * 2
    assert rows[-2][1:3] == ["ArS", "nucleus"]
    assert rows[-2][5] == "1x"
    assert table.columns[3].title == "ROUGE-2"


def test_different_metrics_are_named_in_the_cells() -> None:
    rows = [{**row, "metrics": {"pass@1": 0.451}} for row in _other().summary["rows"]]
    solved = dataclasses.replace(_other(), summary={**_other().summary, "rows": rows})
    table = results.several_runs([measured(), solved], "AB")
    assert table.columns[3].title == "quality"
    assert cells(table)[0][3].startswith("ROUGE-2 0.")
    assert cells(table)[-1][3] == "pass@1 45.1%"


def test_an_arm_that_failed_says_so_and_a_name_drives_no_terminal() -> None:
    rows = [{**row, "sequences": 0, "failed": 2, "ms_per_token": None} for row in _other().summary["rows"]]
    failed = dataclasses.replace(_other(), name="a\x1b[2Jb", summary={**_other().summary, "rows": rows})
    assert cells(results.several_runs([failed], "A"))[0][4] == "failed"
    assert "\x1b[2J" not in _text(measured(), failed)


def test_only_what_differs_is_listed() -> None:
    names = [row[0] for row in cells(results.differences([measured(), _other()], "AB"))]
    assert names == ["seed"]
    other = _other(environment={"gpus": [{"name": "H200"}]})
    assert ["gpus", "-", "name H200"] in cells(results.differences([measured(), other], "AB"))
    assert cells(results.differences([measured(), measured()], "AB")) == []


def test_the_screen_keeps_to_80_columns() -> None:
    long = dataclasses.replace(_other(), name="20250131-120005-" + "x" * 90)
    text = _text(measured(), long)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert " A  fixture: xsum-fixture (synthetic)" in text
    assert "[" in text.split("SpS (K=4)")[1].splitlines()[0]  # the interval is on the same line

"""Several runs in one table."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console
from synthetic_run import measured

from spsbench.report import comparison
from spsbench.report.measured import Measured


def _other(**run: object) -> Measured:
    small = measured(ks=(0, 4), samplings=("nucleus",), seed=9)
    return dataclasses.replace(small, name="other", run={**small.run, **run})


def _text(*runs: Measured) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(comparison.side_by_side(runs))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_every_arm_of_every_run_has_a_row() -> None:
    rows = comparison._table([measured(), _other()])
    assert [row[0] for row in rows] == ["fixture"] * 8 + ["other"] * 2
    assert rows[-2][1:3] == ["ArS", "nucleus"]
    assert rows[-2][5] == "1x"
    assert comparison._header([measured(), _other()])[3] == "ROUGE-2"


def test_different_metrics_are_named_in_the_cells() -> None:
    rows = [{**row, "metrics": {"pass@1": 0.451}} for row in _other().summary["rows"]]
    solved = dataclasses.replace(_other(), summary={**_other().summary, "rows": rows})
    assert comparison._header([measured(), solved])[3] == "quality"
    table = comparison._table([measured(), solved])
    assert table[0][3].startswith("ROUGE-2 0.")
    assert table[-1][3] == "pass@1 45.1%"


def test_only_what_differs_is_listed() -> None:
    names = [row[0] for row in comparison._differences([measured(), _other()])]
    assert names == ["seed"]
    found = comparison._differences([measured(), _other(environment={"gpus": [{"name": "H200"}]})])
    assert ["gpus", "-", "name H200"] in found
    assert comparison._differences([measured(), measured()]) == []


def test_the_screen_keeps_to_80_columns() -> None:
    long = dataclasses.replace(_other(), name="20250131-120005-" + "x" * 90)
    text = _text(measured(), long)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert " A  fixture: xsum-fixture (synthetic)" in text
    assert "[" in text.split("SpS (K=4)")[1].splitlines()[0]  # the interval is on the same line

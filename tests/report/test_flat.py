"""Rows as CSV."""

from __future__ import annotations

import csv
import io

from synthetic_run import measured

from spsbench.report.measured import to_csv


def test_every_number_of_a_row_has_a_column() -> None:
    small = measured(ks=(0, 4), samplings=("nucleus",), seed=9)
    text = to_csv([("one", measured().summary), ("two, three", small.summary)])
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["run"] for line in lines] == ["one"] * 8 + ["two, three"] * 2
    row = measured().summary["rows"][3]
    assert float(lines[3]["speedup.ratio"]) == row["speedup"]["ratio"]
    assert float(lines[3]["metrics.rouge2"]) == row["metrics"]["rouge2"]
    assert lines[3]["acceptance.acceptance_per_position"].split() == [
        str(value) for value in row["acceptance"]["acceptance_per_position"]
    ]
    assert lines[0]["speedup.ratio"] == ""

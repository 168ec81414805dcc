"""Rows as tidy CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.synthetic_run import measured

from spsbench.report.exports import lines, to_csv
from spsbench.store.summary_types import ArmRow

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_several_runs_are_one_data_frame() -> None:
    small = dataclasses.replace(measured(ks=(0, 4), samplings=("nucleus",), seed=9), name="two, three")
    frame = pd.read_csv(io.StringIO(to_csv([measured(), small])))
    assert frame["run"].tolist() == ["fixture"] * 8 + ["two, three"] * 2
    wanted = [*measured().summary["rows"], *small.summary["rows"]]
    for (_, line), row in zip(frame.iterrows(), wanted, strict=True):
        assert (line["arm"], line["k"], line["sampling"]) == (row["arm"], row["k"], row["sampling"])
        if row["speedup"] is None:
            assert pd.isna(line["speedup"])
            continue
        ends = [line[name] for name in ("speedup", "speedup_low", "speedup_high")]
        assert ends == pytest.approx([row["speedup"][name] for name in ("ratio", "low", "high")])
        assert line["metric_rouge2"] == pytest.approx(row["metrics"]["rouge2"])
        joint = row["acceptance"]["acceptance_per_position"]
        assert [line[f"acceptance_per_position_{j}"] for j in range(1, row["k"] + 1)] == pytest.approx(joint)
        assert line["macro_r_prime"] == pytest.approx(row["acceptance"]["macro"]["r_prime"])
    concatenated = pd.concat([pd.read_csv(io.StringIO(to_csv([run]))) for run in (measured(), small)])
    assert set(concatenated.columns) == set(frame.columns)
    assert len(concatenated) == len(frame)


def test_a_cell_holds_one_number_or_a_name() -> None:
    names = {"verification_rule", "data", "created_utc", "device_name"}
    for line in read(to_csv([measured()])):
        for column, cell in line.items():
            assert column in names or not re.search(r"\d [\d.]|[\[{]", cell), (column, cell)


def test_the_settings_of_the_run_are_columns() -> None:
    pair = {role: {"name": f"org/{role}", "revision": "0123456789abcdef"} for role in ("target", "draft")}
    run = {
        **measured().run,
        "identity": {**measured().run["identity"], "device": "cpu", "dtype": "float32", "pair": pair},
        "models": {"threads": 3},
        "environment": {"cpu": {"model": "AMD EPYC"}, "spsbench": "1.2.3"},
    }
    nucleus, *_, greedy = lines(dataclasses.replace(measured(), run=run))
    for line in (nucleus, greedy):
        assert (line["target"], line["draft"]) == ("org/target (0123456789ab)", "org/draft (0123456789ab)")
        assert (line["device"], line["device_name"], line["dtype"]) == ("cpu", "AMD EPYC", "float32")
        assert (line["threads"], line["spsbench"], line["seed"]) == (3, "1.2.3", 7)
    assert (nucleus["temperature"], nucleus["top_p"]) == (1.0, 0.8)
    assert (greedy["temperature"], greedy["top_p"]) == (0.0, None)


def test_a_run_without_anything_keeps_its_columns() -> None:
    (line, *_) = lines(measured(prompts=0))
    assert line["speedup"] is line["speedup_low"] is line["ms_per_token"] is None


def described() -> set[str]:
    """The columns that the page describes; ``<j>`` and ``<name>`` stand for any."""
    return set(re.findall(r"`([a-z0-9_<>]+)`", DOCS.read_text(encoding="utf-8")))


def missing(columns: list[str], known: set[str]) -> list[str]:
    patterns = [re.sub("<[a-z]+>", "[A-Za-z0-9@_]+", name) for name in known]
    return [column for column in columns if not any(re.fullmatch(pattern, column) for pattern in patterns)]


OPTIONAL: dict[str, Any] = {
    "called": "echo:most=2",
    "metric_intervals": {"rouge2": {"low": 0.1, "high": 0.2}},
    "paired_waves": 3,
    "paired_conversations": 4,
    "refuted": "the law of token 2",
    "nodes_per_loop": 5.5,
}
"""What a row has of some runs alone."""


def test_every_column_is_described() -> None:
    run = measured()
    rows = [{**row, **OPTIONAL} for row in run.summary["rows"]]
    columns = list(read(to_csv([dataclasses.replace(run, summary={**run.summary, "rows": rows})]))[0])
    assert {name for name, kind in ArmRow.__annotations__.items() if "NotRequired" in str(kind)} == {
        *OPTIONAL
    }
    assert missing(columns, described()) == []
    assert missing([*columns, "planted"], described()) == ["planted"]

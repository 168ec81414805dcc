"""A run's arms as tidy CSV: one line an arm, one number a cell, so that several runs are one data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spsbench.report import facts
from spsbench.report.measured import Measured
from spsbench.report.wording import printable
from spsbench.stats.conditions import untrusted_because
from spsbench.summary_types import ArmRow

Cell = str | int | float | bool | None
Line = dict[str, Cell]

_PREFIXES = {
    "acceptance": "",
    "loop_time": "",
    "macro": "macro_",
    "metrics": "metric_",
    "metric_intervals": "metric_",
    "prediction": "predicted_",
}
"""What the columns of a nested entry begin with, where that is not the entry's own name."""

_RATIOS = ("speedup", "end_to_end_speedup", "own_speedup")
_HALVES, _HALF_NAMES = "speedup_halves", ("speedup_first_half", "speedup_second_half")


def to_csv(runs: Sequence[Measured]) -> str:
    """One line per run and arm, a header first; a value that does not exist is an empty cell.

    Columns that only some runs have are empty for the others. ``docs/report.md`` describes every column.
    """
    found = [
        {_inert(name): _inert(value) for name, value in line.items()}
        for measured in runs
        for line in lines(measured)
    ]
    columns = list(dict.fromkeys(column for line in found for column in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return file.getvalue()


def _inert(cell: Any) -> Any:
    """A text without control characters that a spreadsheet takes for no formula."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def lines(measured: Measured) -> list[Line]:
    """One line per arm: the run's settings, the arm's axes, then what was measured."""
    shared, arms = _settings(measured), measured.run.get("arms") or ()
    params = {arm.get("sampling"): arm.get("params") or {} for arm in arms}
    judged = {
        arm["arm"]: arm["verdict"] for arm in (measured.summary["losslessness"] or {"arms": []})["arms"]
    }
    untrusted = "; ".join(untrusted_because(measured.summary))
    return [
        {
            **shared,
            **_axes(row),
            **_sampling(params.get(row["sampling"]) or {}),
            "losslessness": judged.get(row["arm"]),
            "untrusted": untrusted,
            **dict(_numbers(row)),
        }
        for row in measured.summary["rows"]
    ]


_AXES = ("arm", "method", "drafter", "rule", "policy", "engine", "batch", "k", "sampling")


def _settings(measured: Measured) -> Line:
    summary, run = measured.summary, measured.run
    data = summary.get("data")
    return {
        "run": measured.name,
        "task": summary.get("task_label"),
        "synthetic": bool(summary.get("synthetic")),
        "data": data.get("source") if isinstance(data, Mapping) else data,
        "target": facts.model(run, "target"),
        "draft": facts.model(run, "draft"),
        "device": facts.value(run, "identity", "device"),
        "device_name": facts.device_name(run),
        "dtype": facts.dtype(run),
        "threads": facts.value(run, "models", "threads"),
        "max_new_tokens": facts.value(run, "identity", "max_new_tokens"),
        "fixed_length": facts.value(run, "identity", "fixed_length"),
        "seed": facts.value(run, "identity", "seed"),
        "created_utc": run.get("created_utc"),
        "spsbench": facts.value(run, "environment", "spsbench"),
    }


def _axes(row: ArmRow) -> Line:
    known: Mapping[str, Any] = row
    return {name: known.get(name) for name in _AXES}


def _sampling(params: Mapping[str, Any]) -> Line:
    """``temperature`` is 0 for greedy decoding, as the field writes it."""
    greedy = bool(params.get("greedy"))
    return {
        "temperature": 0.0 if greedy else params.get("temperature"),
        "top_k": None if greedy else params.get("top_k"),
        "top_p": None if greedy else params.get("top_p"),
    }


def _numbers(row: ArmRow) -> Iterator[tuple[str, Cell]]:
    for name, value in row.items():
        if name not in _AXES:
            yield from _cells(name, value)


def _cells(name: str, value: Any) -> Iterator[tuple[str, Cell]]:
    """An entry of the summary as columns of one value each."""
    if name in _RATIOS or (isinstance(value, Mapping) and "low" in value):
        yield from _interval(name, value or {})
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _cells(_PREFIXES.get(name, f"{name}_") + key, part)
    elif name == _HALVES:
        yield from zip(_HALF_NAMES, value or (None, None), strict=True)
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}_{place}", part) for place, part in enumerate(value, 1))
    elif name not in _PREFIXES:  # what is nested and missing has no columns of its own
        yield name, value


def _interval(name: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    if name in _RATIOS:
        yield name, value.get("ratio")
    yield f"{name}_low", value.get("low")
    yield f"{name}_high", value.get("high")

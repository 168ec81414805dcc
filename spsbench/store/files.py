"""Files that are either the old or the new version, never half of one, and the lock of a directory."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.errors import SpsbenchError, UsageError

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def temporary(path: Path) -> Path:
    """Where the new version of ``path`` is written before it takes its place."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; what was written there then replaces ``path`` durably and at once.

    Raises:
        SpsbenchError: if the disk refuses, e.g. because it is full; ``path`` is then as it was.
    """
    new = temporary(path)
    try:
        yield new
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        new.replace(path)
        _sync_folder(path.parent)
    except OSError as problem:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise disk_error(path, problem) from problem


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as new:
        # A path that is not UTF-8, from a folder of another age, is named by its bytes.
        new.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, atomically; see ``plain`` for what may be in it."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path, flag: str) -> dict[str, Any]:
    """The object in a JSON file of a run directory.

    Raises:
        UsageError: if it is missing or damaged; it names ``flag``.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}).", flag=flag, remedy="Name the directory of a run."
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise UsageError(
            f"{path} is damaged ({problem}).", flag=flag, remedy="Restore the file or start a new run."
        ) from problem
    if not isinstance(content, dict):
        raise UsageError(f"{path} is damaged (no object).", flag=flag, remedy="Name the directory of a run.")
    return content


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: dataclasses, tuples, paths and numpy become plain, NaN becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def disk_error(path: Path, problem: OSError) -> SpsbenchError:
    """The error for a file that could not be written while a command was under way."""
    folder = next((folder for folder in path.parents if (folder / "run.json").is_file()), None)
    again = "repeat the command" if folder is None else f"continue with `spsbench run --resume {folder}`"
    first = "Make the folder writable" if problem.errno in _FORBIDDEN else "Make room"
    return SpsbenchError(
        f"{path} could not be written ({problem.strerror or problem}).",
        remedy=f"{first}, then {again}; nothing finished is lost.",
    )


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder and those above it, if need be.

    Raises:
        UsageError: it cannot be made; it names ``flag``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(folder, problem, flag) from problem


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK_NAME = ".spsbench.lock"


def acquire_lock(directory: Path, flag: str) -> int:
    """Lock a run directory for this process until the returned descriptor is closed or the process ends.

    The kernel holds the lock, so a killed process leaves none behind.

    Raises:
        UsageError: if another process holds it or the directory cannot be written to.
    """
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise unwritable(directory, problem, flag) from problem
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another process is writing to {directory}.",
            flag=flag,
            remedy="Wait for it or name another directory.",
        ) from None
    except OSError as problem:
        os.close(descriptor)
        raise unwritable(directory, problem, flag) from problem
    return descriptor


def unwritable(directory: Path, problem: OSError, flag: str) -> UsageError:
    """The error for a directory that a run cannot write to."""
    return UsageError(
        f"{directory} cannot be written to ({problem.strerror or problem}).",
        flag=flag,
        remedy="Name a directory that can be.",
    )

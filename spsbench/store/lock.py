"""One writer per run directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from spsbench.errors import UsageError

LOCK_NAME = ".spsbench.lock"


def acquire(directory: Path, flag: str) -> int:
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

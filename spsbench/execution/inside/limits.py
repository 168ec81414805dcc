"""Resource limits of one program, and the imports that must come before them."""

from __future__ import annotations

import importlib._bootstrap_external as machinery
import os
import resource
import sys
from pathlib import Path


def lower_common(memory_bytes: int) -> None:
    """Limit this process and every fork of it: memory, no file, no core, few descriptors.

    A hard limit that is lower already stays.
    """
    _lower({"AS": memory_bytes, "FSIZE": 0, "CORE": 0, "NOFILE": 64, "MEMLOCK": 0, "MSGQUEUE": 0})


def lower_own(cpu_s: int) -> None:
    """Limit this process alone: CPU time, no further process."""
    _lower({"CPU": cpu_s, "NPROC": 0})  # root is exempt from the latter; seccomp is not


def _lower(wanted: dict[str, int]) -> None:
    for name, value in wanted.items():
        number = getattr(resource, f"RLIMIT_{name}", None)  # not every system has every limit
        if number is not None:
            _limit(number, value)


def _limit(number: int, value: int) -> None:
    _, hard = resource.getrlimit(number)
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(number, (lowered, lowered))
    except (OSError, ValueError):  # macOS refuses some; the deadline and the judge's caps remain
        return


def lower_soft(name: str, value: int) -> None:
    """Set a soft limit alone, where the hard one allows it."""
    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(number, (soft, hard))
    except (OSError, ValueError):
        return


def open_before_looking() -> None:
    """Let the import system ask about a file when it is open: one that cannot be read is not there.

    Folders that it has listed by now are as they were: the library's own may be hidden later, though
    what lies in it is not.
    """
    folders = map(Path, sys.path_importer_cache)
    known = {str(folder): folder.stat() for folder in folders if folder.is_dir()}
    machinery._path_stat = lambda path: known.get(path) or _opened(path)  # type: ignore[attr-defined]


def _opened(path: str) -> os.stat_result:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)

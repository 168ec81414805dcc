"""Imports without a look at a path, which the filter of system calls refuses to a program."""

from __future__ import annotations

import importlib._bootstrap_external as machinery
import os
import sys
from pathlib import Path


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

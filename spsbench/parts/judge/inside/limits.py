"""Resource limits of one program, and the imports that must come before them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib._bootstrap_external as machinery
import mmap
import os
import pkgutil
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

Known = TypeVar("Known")

_IMPORTED = (".py", ".so")
_PACKAGES = {"site-packages", "dist-packages"}
_NOT_IMPORTED = {*_PACKAGES, "test", "idlelib", "turtledemo", "ensurepip", "__pycache__"}


def lower_common(memory_bytes: int) -> None:
    """For every fork too: memory, no file, no core, few descriptors; lower hard limits stay."""
    hard = {"AS": memory_bytes, "FSIZE": 0, "CORE": 0, "NOFILE": 64, "MEMLOCK": 0, "MSGQUEUE": 0}
    for name, value in hard.items():
        lower(name, value, hard=True)


def lower(name: str, value: int, *, hard: bool) -> None:
    """Lower a limit, or only its soft value, as far as the hard one allows it."""
    number = getattr(resource, f"RLIMIT_{name}", None)  # not every system has every limit
    if number is None:
        return
    _, most = resource.getrlimit(number)
    lowered = value if most == resource.RLIM_INFINITY else min(value, most)
    # macOS refuses some; the deadline and the judge's caps remain.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(number, (lowered, lowered if hard else most))


def read_library(packages: Iterable[str]) -> None:
    """Read all that programs may import, so that they import it without opening a file.

    Opening a file changes its access time, which the next program could read. Shared libraries are loaded
    here, and importing one finds it loaded.
    """
    looked: dict[str, os.stat_result] = {}
    places: dict[str, slice] = {}
    # Not in this process's own memory, whose pages every fork would have to copy.
    in_memory = sys.platform == "linux"
    with os.fdopen(os.memfd_create("library"), "w+b") if in_memory else TemporaryFile() as library:
        for top in (*sys.path, *packages):
            for folder, below, files in os.walk(top):
                below[:] = [name for name in below if name not in _NOT_IMPORTED]
                for path in (folder, *(f"{folder}/{name}" for name in files if name.endswith(_IMPORTED))):
                    # A link that leads to nothing, or a library without what it needs: it cannot be imported.
                    with contextlib.suppress(OSError):
                        if path.endswith(".so"):
                            ctypes.CDLL(path)
                        looked[path] = Path(path).stat()
                        for part in (path, machinery.cache_from_source(path)) if path.endswith(".py") else ():
                            start = library.tell()
                            library.write(Path(part).read_bytes())
                            places[part] = slice(start, library.tell())
        library.flush()
        content = mmap.mmap(library.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    machinery._path_stat = lambda path: _known(looked, path)  # type: ignore[attr-defined]
    machinery.FileLoader.get_data = lambda self, path: content[_known(places, path)]  # type: ignore[method-assign]
    for folder in [path for path in looked if not path.endswith(_IMPORTED)]:
        finder = pkgutil.get_importer(folder)
        if finder is not None:
            finder.find_spec("no_such_module")  # lists the folder, once


def _known(all_known: dict[str, Known], path: str) -> Known:
    if path in all_known:
        return all_known[path]
    raise FileNotFoundError(errno.ENOENT, "not to be read here", path)

"""The cache of models and sources, the packages whose models it may hold, and who watches it being filled.

models/HASH-VERSION/           a model folder, whole: it is written as HASH-VERSION.partial and renamed
models/HASH-VERSION.lock       held while it is made
downloads/FILE.part            what has come of a file so far
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from spsbench.config.files import read_yaml, unknown_name, validate
from spsbench.errors import UnavailableError
from spsbench.paths import data_dir


class Watcher(Protocol):
    """Is notified of progress; nothing depends on it."""

    def said(self, message: str) -> None:
        """A sentence."""

    def transfer(self, what: str, total: int, done: int) -> AbstractContextManager[Callable[[int], None]]:
        """Bytes are coming, ``total`` in all, some ``done``; what is entered takes how many came."""


class Silent:
    """Notifies nobody."""

    def said(self, message: str) -> None: ...

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher:
    """The watcher of the innermost ``watched_by``; a silent one outside of all."""
    return _WATCHER.get() or Silent()


@contextmanager
def watched_by(somebody: Watcher) -> Iterator[None]:
    """Notify ``somebody`` of what happens inside the block."""
    token = _WATCHER.set(somebody)
    try:
        yield
    finally:
        _WATCHER.reset(token)


VARIABLE = "SPSBENCH_CACHE"

CONVERSION = "v1"
"""Of the way models are converted: another one makes new folders."""


def cache_dir() -> Path:
    """``SPSBENCH_CACHE``, else ``spsbench`` in ``XDG_CACHE_HOME`` or ``~/.cache``; it need not exist."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spsbench"


def model_folder(sha256: str) -> Path:
    """Where the model made from a file with this hash is, or will be; if it exists, it is whole."""
    return cache_dir() / "models" / f"{sha256[:16]}-{CONVERSION}"


def part_of(file: str) -> Path:
    """Where what has come of a file is kept until all of it is there."""
    return cache_dir() / "downloads" / f"{file}.part"


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Be the only process that makes or removes a model folder; the others wait."""
    from filelock import FileLock, Timeout

    with writable():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            watcher().said(f"Waiting for another process that prepares {what}")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which gets its name when the block ends well and goes if it does not.

    Only inside of ``locked``: what a killed process left behind is cleared away.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    with writable():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def require_room(needed: int, what: str) -> None:
    """Refuse to begin what the cache's disk has no room for: ``needed`` bytes."""
    folder = cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UnavailableError(
            f"{what} needs {megabytes(needed)} in {folder}, which has {megabytes(free)} free.",
            remedy=f"Make room, or name another folder by {VARIABLE}.",
        )


def remove(folder: Path) -> int:
    """Remove a model folder and whatever is left of making it; the bytes that this frees."""
    gone = (folder, folder.with_name(f"{folder.name}.partial"))
    freed = sum(size_of(path) for path in gone)
    with writable():
        for path in gone:
            if path.exists():
                shutil.rmtree(path)
    return freed


def remove_part(file: str) -> int:
    """Remove what has come of a file that is not whole; the bytes that this frees."""
    part = part_of(file)
    with writable():
        freed = part.stat().st_size if part.is_file() else 0
        part.unlink(missing_ok=True)
    return freed


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder; 0 if there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def megabytes(count: int) -> str:
    """A number of bytes, e.g. ``93 MB``."""
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


@contextmanager
def writable() -> Iterator[None]:
    """Name the cache where the disk refuses the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnavailableError(
            f"{cache_dir()} cannot be written ({reason}).", remedy=f"Name another folder by {VARIABLE}."
        ) from error


PREFIX = "package:"
"""How a model inside a package is named, e.g. ``package:smollm2``."""

Count = Annotated[int, Field(strict=True, ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(_Settings):
    """A file: its name, size in bytes and hash."""

    file: str
    bytes: Count
    sha256: Sha256


class Package(_Settings):
    """A model inside a wheel of a package index; converted it takes ``kept_bytes``."""

    name: str  # after ``package:``
    model: str
    licence: str
    package: str
    version: str
    wheel: Stored
    member: Stored
    kept_bytes: Count

    @property
    def folder(self) -> Path:
        """Where the converted model is, or will be."""
        return model_folder(self.member.sha256)

    @property
    def is_here(self) -> bool:
        """Whether it was fetched and converted."""
        return self.folder.is_dir()


def load_package(name: str, flag: str) -> Package:
    """A model by its name, with or without ``package:``."""
    stem = name.removeprefix(PREFIX)
    files = {path.stem: path for path in data_dir("configs/packages").glob("*.yaml")}
    if stem not in files:
        raise unknown_name("packaged model", stem, files, flag)
    content = {"name": stem} | read_yaml(files[stem], flag)
    return validate(Package, content, lambda key: f"{files[stem]}: {key}")

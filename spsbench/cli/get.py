"""``spsbench get``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import options

if TYPE_CHECKING:
    from spsbench.fetch.catalogue import Package

Name = Annotated[str, typer.Argument(metavar="NAME", help="A pair, see `spsbench list pairs`.")]
Remove = Annotated[bool, typer.Option("--remove", help="Take away what was fetched.")]


def get(
    name: Name,
    remove: Remove = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Fetch a pair's models, or take them away; the size is said first.

    Example: spsbench get smollm2
    """
    from spsbench.cli.console import out, print_json
    from spsbench.cli.transfers import Transfers
    from spsbench.fetch.watching import watched_by

    packages = _packages_of(name)
    with watched_by(Transfers(quiet=quiet or json)):
        freed = [_remove(package) if remove else _fetch(package) for package in packages]
    if json:
        print_json([_row(*pair) for pair in zip(packages, freed, strict=True)])
        return
    for package, gone in zip(packages, freed, strict=True):
        out().print(_sentence(package, gone, removed=remove), soft_wrap=True, markup=False)


def _packages_of(name: str) -> list[Package]:
    """The packaged models of a pair, each once.

    Raises:
        UsageError: there is no such pair, or it comes from elsewhere.
    """
    from spsbench.config import load_pair
    from spsbench.errors import UsageError
    from spsbench.fetch.catalogue import PREFIX, load_package
    from spsbench.paths import EMBEDDED

    pair = load_pair(name.removeprefix(PREFIX))
    ids = list(dict.fromkeys((pair.target.id, pair.draft.id)))
    packages = [load_package(id, "NAME") for id in ids if id.startswith(PREFIX)]
    if packages:
        return packages
    if all(id.startswith(EMBEDDED) for id in ids):
        raise UsageError(f"{name} is part of spsbench.", flag="NAME", remedy="There is nothing to fetch.")
    commands = " and ".join(f"`hf download {id}`" for id in ids if not id.startswith(EMBEDDED))
    raise UsageError(
        f"{name} is on the Hugging Face hub.", flag="NAME", remedy=f"A run fetches it, or {commands}."
    )


def _fetch(package: Package) -> int:
    """Fetch it if need be; 0, as nothing is freed."""
    from spsbench.models.converted import folder_of_package

    folder_of_package(package.name, "NAME")
    return 0


def _remove(package: Package) -> int:
    """Remove the model and what is left of fetching it; the bytes that this frees."""
    from spsbench.fetch.cache import locked, part_of, remove

    with locked(package.folder, package.name):
        part = part_of(package.wheel.file)
        kept = part.stat().st_size if part.is_file() else 0
        part.unlink(missing_ok=True)
        return kept + remove(package.folder)


def _row(package: Package, freed: int) -> dict[str, Any]:
    from spsbench.fetch.cache import size_of

    kept = size_of(package.folder)
    return {"model": package.name, "folder": str(package.folder), "bytes": kept, "freed_bytes": freed}


def _sentence(package: Package, freed: int, *, removed: bool) -> str:
    from spsbench.fetch.cache import megabytes, size_of

    if not removed:
        return f"{package.name} is in {package.folder} ({megabytes(size_of(package.folder))})."
    return f"{package.name} is gone: {megabytes(freed)} freed." if freed else f"{package.name} was not here."

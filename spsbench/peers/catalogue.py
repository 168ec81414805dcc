"""Engines that can be installed, in YAML: what they are, what they take, and what they cannot do.

Beside each ``configs/engines/NAME.yaml`` is its lock file, ``NAME.txt``: every package with its version and
the hashes of its files.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from spsbench.config.files import read_yaml, unknown_name, validate
from spsbench.fetch.cache import Stored, cache_dir
from spsbench.paths import data_dir
from spsbench.peers.environment import Environment

Count = Annotated[int, Field(strict=True, ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(Stored):
    """A source distribution on the package index; ``folder`` inside of it is what is compiled."""

    folder: str


class Rules(_Settings):
    """By which drafted tokens are kept, greedy and sampled."""

    greedy: str
    sampled: str


class Entry(_Settings):
    """An engine that can be installed.

    Attributes:
        fetch_bytes, kept_bytes: to fetch, and to keep.
        spare_bytes: taken beyond that while it is being installed.
        duration: of the installation, roughly, e.g. ``1 minute``.
        statistics: fields of an answer that it fills, of ``loops``, ``drafted``, ``accepted``.
    """

    name: str
    title: str
    package: str
    version: str
    source: Source | None = None
    elsewhere: dict[str, str] = {}
    fetch_bytes: Count
    kept_bytes: Count
    spare_bytes: Count = 0
    duration: str
    rules: Rules
    statistics: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def lock(self) -> Path:
        """Its lock file, in pip's format for requirements."""
        return _folder() / f"{self.name}.txt"

    @property
    def environment(self) -> Environment:
        """Where it is, or will be. Another lock file, version or Python is another place."""
        pinned = hashlib.sha256(self.lock.read_bytes() + self.version.encode()).hexdigest()[:8]
        python = f"py{sys.version_info.major}.{sys.version_info.minor}"
        return Environment(engines_dir() / f"{self.name}-{self.version}-{python}-{pinned}")


def engines_dir() -> Path:
    """Where all engines are installed."""
    return cache_dir() / "engines"


def list_entries() -> list[str]:
    """Names of all engines that can be installed."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load_entry(name: str, flag: str) -> Entry:
    """An engine by its name."""
    file = _folder() / f"{name}.yaml"
    if name not in list_entries():
        raise unknown_name("engine", name, list_entries(), flag)
    return validate(Entry, {"name": name} | read_yaml(file, flag), lambda key: f"{file}: {key}")


def _folder() -> Path:
    return data_dir("configs/engines")

"""The models that come inside a Python package, in YAML: which package and file, sizes, hashes, licence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from spsbench.config.files import read_yaml, unknown_name, validate
from spsbench.fetch.cache import model_folder
from spsbench.paths import data_dir

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
    """A model inside a wheel of a package index.

    Attributes:
        name: after ``package:``.
        kept_bytes: what the converted model takes.
    """

    name: str
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

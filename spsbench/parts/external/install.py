"""Installs an engine into its own environment in the cache, or takes it away."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from spsbench.base import RELEASE, UnavailableError, UsageError, data_dir, unknown
from spsbench.config import read_yaml, validate
from spsbench.models import megabytes
from spsbench.models.fetch import cache

Count = Annotated[int, Field(strict=True, ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceArchive(cache.Stored):
    """A source distribution on the package index; ``folder`` inside of it is what is compiled."""

    folder: str


class Rules(_Settings):
    """By which drafted tokens are kept, greedy and sampled."""

    greedy: str
    sampled: str


class Entry(_Settings):
    """An engine that can be installed; ``spare_bytes`` are taken beyond the others while that goes on, and
    ``statistics`` are the fields of an answer that it fills, of ``loops``, ``drafted``, ``accepted``.
    ``pins`` are packages that every release gets in this version: its results depend on them. ``without`` are
    packages that a release asks for and does not need, and whose wheels do not fit the others.
    """

    name: str
    title: str
    package: str
    version: str
    source: SourceArchive | None = None
    elsewhere: dict[str, str] = {}
    pins: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    locked: bool = True  # the lock file is of this release
    fetch_bytes: Count
    kept_bytes: Count
    spare_bytes: Count = 0
    duration: str
    rules: Rules
    statistics: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def lock(self) -> Path:
        """The lock file, in pip's format for requirements."""
        return _folder() / f"{self.name}.txt"

    @property
    def environment(self) -> Environment:
        """Where the environment is, or will be; another lock file, version or Python gives another place."""
        fixed = self.lock.read_bytes() if self.locked else "\n".join(self.requirements).encode()
        pinned = hashlib.sha256(fixed + self.version.encode()).hexdigest()[:8]
        python = f"py{sys.version_info.major}.{sys.version_info.minor}"
        name = f"{self.name}-{self.version}" if self.locked else self.called
        return Environment(engines_dir() / f"{name}-{python}-{pinned}")

    @property
    def called(self) -> str:
        """The engine's name on the command line."""
        return self.name if self.locked else f"{self.name}{RELEASE}{self.version}"

    @property
    def requirements(self) -> list[str]:
        """Of a release without a lock file: itself and the pins; the index chooses the rest."""
        words = (*self.elsewhere, *self.lock.read_text().split())
        return [f"{self.package}=={self.version}", *(w for w in words if w.partition("==")[0] in self.pins)]

    def at(self, version: str) -> Entry:
        if version == self.version:
            return self
        source = self.source
        if source is not None:
            names = {
                name: getattr(source, name).replace(self.version, version) for name in ("file", "folder")
            }
            source = source.model_copy(update=names)
        return self.model_copy(update={"version": version, "locked": False, "source": source})


def engines_dir() -> Path:
    return cache.cache_dir() / "engines"


def list_entries() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load_entry(name: str, flag: str) -> Entry:
    """An engine by its name, in the catalogue's release or in the one that the name carries."""
    name, at, version = name.partition(RELEASE)
    file = _folder() / f"{name}.yaml"
    if name not in list_entries():
        raise unknown(name, sorted(list_entries()), flag, sort="engine")
    entry = validate(Entry, {"name": name} | read_yaml(file, flag), lambda key: f"{file}: {key}")
    if at and not re.fullmatch(r"[0-9][A-Za-z0-9.+!_]*", version):  # it becomes part of a path
        why = f"{version or 'an empty text'} is not a release."
        remedy = f"E.g. {name}@{entry.version}."
        raise UsageError(why, flag=flag, remedy=remedy)
    return entry.at(version) if at else entry


def _folder() -> Path:
    return data_dir("configs/engines")


_TICK_S, _END_S = 1.0, 5.0


Run = Callable[..., None]
"""Runs a command to its end, as ``run`` does."""


def run(
    argv: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run a command with its output in a log; ``tick`` is called while it runs."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        before = output.tell()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    code = process.wait(_TICK_S)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        command = " ".join(Path(part).name for part in argv[:4])
        why = f"`{command} ...` failed: {_failure_reason(log, before, code)}."
        raise UnavailableError(why, remedy=f"All that it said is in {log}.")


def clean_environment() -> dict[str, str]:
    """Our environment variables without those that let another interpreter find our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


_ANSWERED = re.compile(r"conflicting dependencies|\(from versions: (?!none)")


def _failure_reason(log: Path, start: int, code: int) -> str:
    """pip's conflict or missing version, no network, or the last error line."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if _ANSWERED.search(line)]
    if not errors and any("connection" in line and "establish" in line for line in map(str.lower, lines)):
        return "no package index can be reached"
    errors = errors or [line for line in lines if "error" in line.lower()]
    return next(reversed(errors or lines), f"it ended with {code}").removeprefix("ERROR: ").rstrip(".")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, always used by its interpreter: the scripts in ``bin`` name the folder in
    which they were made, and it is renamed once it is whole.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter; not resolved, since the link is what makes it an environment."""
        return self.folder / "bin" / "python"

    @property
    def server(self) -> Path:
        """llama.cpp's server, where that was installed."""
        return self.folder / "bin" / "llama-server"

    @property
    def is_here(self) -> bool:
        """Whether it is installed, and the interpreter that it was made with still exists."""
        return self.python.exists()

    @property
    def mark(self) -> Path:
        """The file that marks an environment which its own command will remove."""
        return self.folder / "passing"

    def require_own(self, flag: str) -> None:
        """Refuse to run what another user owns or can write: programs, packages and their folders."""
        folders = [self.folder, self.python.parent, *self.folder.glob("lib/python3*/site-packages")]
        inside = (each for folder in folders for each in folder.glob("*"))
        for path in (self.folder.parent, self.folder, *inside):
            status = path.lstat()
            open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
            open_to_some = status.st_mode & stat.S_IWGRP and status.st_gid != os.getgid()
            changeable = not stat.S_ISLNK(status.st_mode) and (open_to_all or open_to_some)
            if status.st_uid not in (os.getuid(), 0) or changeable:
                why = f"{path} belongs to another user, or others may write to it, so it is not run."
                remedy = f"Take it over (chown, chmod go-w), or install it into another {cache.VARIABLE}."
                raise UsageError(why, flag=flag, remedy=remedy)

    @property
    def packages(self) -> Path:
        folder = next(self.folder.glob("lib/python3*/site-packages"), None)
        if folder is None:
            raise FileNotFoundError(f"{self.folder} has no packages")
        return folder


_PIP = ("install", "--only-binary", ":all:", "--no-input", "--retries", "1", "--progress-bar", "off")
_COMPILERS = ("c++", "g++", "clang++")
_CMAKE = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    **dict.fromkeys(("LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES"), "OFF"),
    **dict.fromkeys(("LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI"), "OFF"),
}


def install(entry: Entry, execute: Run = run, *, passing: bool = False) -> Environment:
    """Install an engine if it is missing; a second process waits for the first.

    ``passing`` marks an environment that is made here as one to be thrown away; without it an environment is
    there to stay.
    """
    environment = entry.environment
    with cache.locked(environment.folder, entry.title):
        if not environment.is_here:
            _install(entry, execute, passing)
        elif not passing:
            environment.mark.unlink(missing_ok=True)
    return environment


def discard(entry: Entry) -> None:
    """Remove an environment that was made in passing; keep any other."""
    environment = entry.environment
    if environment.mark.exists():
        with cache.locked(environment.folder, entry.title):
            # Half of one, were this interrupted, must not look like a whole one.
            cache.remove(
                environment.folder.rename(environment.folder.with_name(f"{environment.folder.name}.partial"))
            )


def uninstall(entry: Entry) -> int:
    """Remove an engine, other versions of it too, or a release alone; return the bytes that this frees."""
    environment = entry.environment
    with cache.locked(environment.folder, entry.title):
        # Environments of any version, whole or partial.
        pattern = f"{entry.name}[-{RELEASE}]*-py*" if entry.locked else f"{environment.folder.name}*"
        others = (path for path in engines_dir().glob(pattern) if path.is_dir())
        finished = {path.with_name(path.name.removesuffix(".partial")) for path in others}
        freed = sum(cache.remove(folder) for folder in finished | {environment.folder})
        if entry.source is not None:
            freed += cache.remove_part(entry.source.file)
        _log(entry).unlink(missing_ok=True)
        return freed


def _install(entry: Entry, execute: Run, passing: bool) -> None:
    """Install an engine into an environment of its own, complete or not at all."""
    if entry.source is not None:
        named = os.environ.get("CXX")
        if not any(shutil.which(name) for name in ((named,) if named else _COMPILERS)):
            what = f"CXX={named} is not there" if named else "there is no C++ compiler on this machine"
            remedy = "Install g++ or clang++, or set CXX."
            raise UnavailableError(f"{entry.title} is compiled here, and {what}.", remedy=remedy)
        if not hasattr(tarfile, "data_filter"):
            python_version = platform.python_version()
            why = f"{entry.title} comes as sources, which Python {python_version} cannot unpack safely."
            raise UnavailableError(why, remedy="Use Python 3.11.4 or later.")
    fetched, kept = megabytes(entry.fetch_bytes), megabytes(entry.kept_bytes)
    cache.watcher().said(
        f"{entry.title} {entry.version}: {fetched} to fetch, {kept} to keep, about {entry.duration}"
    )
    most = entry.fetch_bytes + entry.kept_bytes + entry.spare_bytes
    cache.require_disk(most, entry.title)
    folder = entry.environment.folder
    with cache.writable():
        shutil.rmtree(folder, ignore_errors=True)  # one whose interpreter is gone
        _log(entry).unlink(missing_ok=True)
    archive = None if entry.source is None else _source_archive(entry, entry.source)
    with cache.written_whole(folder) as partial, cache.watcher().transfer(entry.title, most, 0) as came:
        _fill(entry, Environment(partial), execute, _meter(partial, came), archive)
        if not Environment(partial).is_here:
            raise UnavailableError(f"{entry.title} was not installed.", remedy=f"See {_log(entry)}.")
        if passing:
            Environment(partial).mark.touch()


def _log(entry: Entry) -> Path:
    return engines_dir() / f"{entry.called}.log"


def _fill(
    entry: Entry, environment: Environment, execute: Run, look: Callable[[], None], archive: Path | None
) -> None:
    """Make an environment with our interpreter and this one's pip settings, and install what the engine
    needs.

    What is fetched and compiled on the way lies on the cache's disk, in the partial environment.
    """
    scratch = environment.folder / "scratch"
    settings = {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}

    def run_here(*argv: str | Path) -> None:
        execute(argv, _log(entry), clean_environment() | settings, look)
        look()

    def pip(*what: str | Path) -> None:
        run_here(environment.python, "-m", "pip", *_PIP, *what)

    scratch.mkdir()
    run_here(sys.executable, "-m", "venv", environment.folder)
    with suppress(FileNotFoundError):
        shutil.copy(Path(sys.prefix) / "pip.conf", environment.folder)
    if entry.locked or archive is not None:
        for requirement, index in entry.elsewhere.items():
            try:
                pip("--no-deps", requirement)  # from the indexes that the user's pip knows
            except UnavailableError:
                pip("--no-deps", requirement, "--index-url", index)
        pip("--no-deps", "--require-hashes", "-r", entry.lock)
    else:
        more = [word for index in entry.elsewhere.values() for word in ("--extra-index-url", index)]
        try:
            pip(*entry.requirements)
        except UnavailableError:
            if not more:
                raise
            pip(*entry.requirements, *more)
        if entry.without:
            run_here(environment.python, "-m", "pip", "uninstall", "--yes", *entry.without)
    if archive is not None:
        _compile(entry, environment, archive, scratch, run_here)
        archive.unlink()
    shutil.rmtree(scratch)


def _compile(entry: Entry, environment: Environment, archive: Path, scratch: Path, run_here: Run) -> None:
    assert entry.source is not None
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UnavailableError(f"{entry.source.file} is not what it should be: {error}.") from error
    build = scratch / "build"
    flags = [f"-D{name}={value}" for name, value in _CMAKE.items()]
    flags.append(f"-DLLAMA_BUILD_NUMBER={entry.version.partition('.')[0]}")  # else it says build 0
    flags += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={environment.folder / 'bin' / 'ninja'}"]
    cmake = (environment.python, "-m", "cmake")
    run_here(*cmake, "-S", scratch / entry.source.folder, "-B", build, *flags)
    run_here(*cmake, "--build", build, "--target", "llama-server", "-j", str(os.cpu_count() or 1))
    shutil.move(build / "bin" / "llama-server", environment.server)


def _source_archive(entry: Entry, source: SourceArchive) -> Path:
    # Not at the top: requests takes 0.1 s to import, and most commands fetch nothing.
    from spsbench.models import Http, find_file, pip_settings
    from spsbench.models.fetch import cache

    http = Http(pip_settings())
    part = cache.part_of(source.file)
    if entry.locked and part.is_file() and part.stat().st_size >= source.bytes:
        return http.download("", source)
    listed, problems = find_file(entry.package, source.file, http)
    if listed is None:
        why = f" ({'; '.join(problems)})" if problems else ""
        raise UnavailableError(
            f"no package index that pip is set up for has {source.file}{why}.",
            remedy=f"Connect and type `spsbench get {entry.called}`; or copy a full cache to "
            f"{cache.cache_dir()}.",
        )
    if not entry.locked:
        if not listed.sha256 or not listed.bytes:
            raise UnavailableError(f"its index does not say how large {source.file} is, or its hash.")
        source = source.model_copy(update={"sha256": listed.sha256, "bytes": listed.bytes})
    return http.download(listed.url, source)


def _meter(folder: Path, came: Callable[[int], None]) -> Callable[[], None]:
    """Reports how much a folder has grown; only forwards, as what was unpacked is removed."""
    most, following = 0, 0.0

    def look() -> None:
        nonlocal most, following
        started = time.monotonic()
        if started >= following:
            size = _folder_bytes(folder)
            if size > most:
                came(size - most)
                most = size
            following = time.monotonic() + 20 * (time.monotonic() - started)

    return look


def _folder_bytes(folder: Path) -> int:
    """Of files that come and go."""
    total = 0
    for at, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += (Path(at) / name).lstat().st_size
    return total

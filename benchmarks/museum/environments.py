"""Environments of releases, one each, in the cache; engines of ``spsbench get`` have theirs already."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.museum.exhibits import Release
from spsbench.engines.external.install import Environment, Run, clean_environment, load_entry, run
from spsbench.errors import UnavailableError
from spsbench.models.fetch.cache import cache_dir, locked, written_whole

_PIP = ("install", "--only-binary", ":all:", "--no-input", "--progress-bar", "off")


def environment_of(release: Release, peers: Path | None, execute: Run = run) -> Environment:
    """Where a release is, installed if it has pins and is not there.

    Args:
        release: which one.
        peers: a folder that holds environments by the names of their engines; None looks in the cache alone.
        execute: runs a command.

    Raises:
        UnavailableError: pip failed, or an engine of ``spsbench get`` is not installed.
    """
    if release.pins:
        return _installed(release.engine, release.pins, execute)
    if peers is not None and (peers / release.engine).is_dir():
        return Environment((peers / release.engine).absolute())
    found = load_entry(release.engine, "--exhibit").environment
    if not found.is_here:
        raise UnavailableError(
            f"{release.engine} is not installed.",
            flag="--exhibit",
            remedy=f"Type `spsbench get {release.engine}`, or give its environment with --peers.",
        )
    return found


def _installed(engine: str, pins: Sequence[str], execute: Run) -> Environment:
    """An environment with these packages; what they need besides is of the index's choosing."""
    hashed = hashlib.sha256("\n".join(pins).encode()).hexdigest()[:8]
    name = f"{pins[0].replace('==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}-{hashed}"
    environment = Environment(cache_dir() / "museum" / name)
    with locked(environment.folder, engine):
        if not environment.is_here:
            with written_whole(environment.folder) as partial:
                _install(Environment(partial), pins, environment.folder.with_name(f"{name}.log"), execute)
    return environment


def _install(environment: Environment, pins: Sequence[str], log: Path, execute: Run) -> None:
    variables = clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
    execute([sys.executable, "-m", "venv", environment.folder], log, variables)
    execute([environment.python, "-m", "pip", *_PIP, *pins], log, variables)

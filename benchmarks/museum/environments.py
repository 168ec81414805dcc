"""Environments of releases: in the cache, or those of engines in a folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.museum.exhibits import Release
from spsbench.base.errors import UnavailableError
from spsbench.parts.external.install import Environment, Run, install, load_entry, run


def environment_of(release: Release, peers: Path | None, execute: Run = run) -> Environment:
    """Where a release is, installed if it is not the catalogue's and not there.

    Args:
        release: which one.
        peers: a folder that holds environments by the names of their engines; None looks in the cache alone.
        execute: runs a command.

    Raises:
        UnavailableError: pip failed, or an engine of ``spsbench get`` is not installed.
    """
    entry = load_entry(release.engine, "--exhibit")
    if not entry.locked:
        return install(entry, execute)
    if peers is not None and (peers / entry.name).is_dir():
        return Environment((peers / entry.name).absolute())
    if not entry.environment.is_here:
        raise UnavailableError(
            f"{entry.name} is not installed.",
            flag="--exhibit",
            remedy=f"Type `spsbench get {entry.name}`, or give its environment with --peers.",
        )
    return entry.environment

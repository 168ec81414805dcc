"""Isolation levels for generated programs: the best one that holds on this machine is used and recorded."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.execution.canary import holds, works

LEVELS = (
    ("bubblewrap", "landlock", "seccomp"),
    ("namespaces", "landlock", "seccomp"),
    ("landlock", "seccomp"),
    ("bubblewrap", "seccomp"),
)
_LIMITS = "limits"  # part of every level
_NONE = len(LEVELS) + 2  # 5 is a container of the user's own, whose isolation is unknown here
_PARTIAL: tuple[tuple[str, ...], ...] = (("seccomp", _LIMITS), (_LIMITS,))


@dataclass(frozen=True)
class IsolationLevel:
    """What isolates a generated program from this machine.

    Attributes:
        number: 1 (strongest) to 4; 6 is no sandbox.
        name: its layers, as ``bubblewrap+landlock+seccomp``; ``unsafe (...)`` without a sandbox.
        layers: of each program's sandbox, in the names of ``sandbox``.
        missing: why each stronger level does not hold.
    """

    number: int
    name: str
    layers: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        """Whether the canary stayed inside."""
        return self.number <= len(LEVELS)


def probe(unsafe: bool = False) -> IsolationLevel:
    """The strongest level that the canary cannot escape, probed once per process.

    Args:
        unsafe: if no level holds, run programs without a sandbox instead of refusing.

    Raises:
        UsageError: no level holds and ``unsafe`` is not set, or this machine cannot run programs at all.
    """
    found, missing = _best()
    if found is not None:
        return found
    if unsafe:
        return _unsafe(missing)
    raise UsageError(
        f"no sandbox for generated programs holds on this machine ({'; '.join(missing)}).",
        flag="--unsafe-exec",
        remedy="Install bubblewrap, or use Linux 5.13 or newer with Landlock; or give --unsafe-exec in a "
        "container that holds nothing of value, and the results record it.",
    )


def sandbox_level(unsafe: bool = False) -> str:
    """The name of the level in use, for the record. See ``probe``."""
    return probe(unsafe).name


@cache
def _best() -> tuple[IsolationLevel | None, tuple[str, ...]]:
    missing: list[str] = []
    if not hasattr(os, "fork"):
        return None, (f"{platform.system()} cannot fork",)
    for number, layers in enumerate(LEVELS, start=1):
        full = (*layers, _LIMITS)
        fault = holds(full)
        if fault is None:
            return IsolationLevel(number, "+".join(layers), full, tuple(missing)), ()
        missing.append(f"{'+'.join(layers)}: {fault}")
    return None, tuple(missing)


@cache
def _unsafe(missing: tuple[str, ...]) -> IsolationLevel:
    where = "in a container" if _in_container() else "not in a container"
    for layers in _PARTIAL:
        if works(layers) is None:
            return IsolationLevel(_NONE, f"unsafe ({'+'.join(layers)}, {where})", layers, missing)
    raise UsageError(
        f"generated programs cannot be run on this machine at all ({'; '.join(missing)}).",
        remedy="Generate with --no-score and judge the samples on Linux with `spsbench judge`.",
    )


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))

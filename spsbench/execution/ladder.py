"""The ladder of sandboxes: the best that holds on this machine is taken, and told."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.execution.canary import holds, works

RUNGS = (
    ("bubblewrap", "landlock", "seccomp"),
    ("namespaces", "landlock", "seccomp"),
    ("landlock", "seccomp"),
    ("bubblewrap", "seccomp"),
)
_LIMITS = "limits"  # on every rung
_NONE = len(RUNGS) + 2  # between them stands a container of the user's own, of which nothing is known here
_PARTIAL: tuple[tuple[str, ...], ...] = (("seccomp", _LIMITS), (_LIMITS,))


@dataclass(frozen=True)
class Rung:
    """What stands between a program and this machine.

    Attributes:
        number: 1 to 4 from the top; 6 is no sandbox.
        name: of the layers, ``bubblewrap+landlock+seccomp``; ``unsafe (...)`` without a sandbox.
        layers: of each program's sandbox, in the names of ``sandbox``.
        missing: why the rungs above are not in force.
    """

    number: int
    name: str
    layers: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        """Whether a canary stayed in."""
        return self.number <= len(RUNGS)


def probe(unsafe: bool = False) -> Rung:
    """The best rung that a canary cannot leave, tried once for each process.

    Args:
        unsafe: without any, run programs with the limits alone instead of refusing.

    Raises:
        UsageError: no rung holds, and ``unsafe`` was not given or does not help here.
    """
    found, missing = _ladder()
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


def sandbox_rung(unsafe: bool = False) -> str:
    """The name of the rung in force, for the record. See ``probe``."""
    return probe(unsafe).name


@cache
def _ladder() -> tuple[Rung | None, tuple[str, ...]]:
    missing: list[str] = []
    if not hasattr(os, "fork"):
        return None, (f"{platform.system()} cannot fork",)
    for number, layers in enumerate(RUNGS, start=1):
        full = (*layers, _LIMITS)
        fault = holds(full)
        if fault is None:
            return Rung(number, "+".join(layers), full, tuple(missing)), ()
        missing.append(f"{'+'.join(layers)}: {fault}")
    return None, tuple(missing)


@cache
def _unsafe(missing: tuple[str, ...]) -> Rung:
    where = "in a container" if _in_container() else "not in a container"
    for layers in _PARTIAL:
        if works(layers) is None:
            return Rung(_NONE, f"unsafe ({'+'.join(layers)}, {where})", layers, missing)
    raise UsageError(
        f"generated programs cannot be run on this machine at all ({'; '.join(missing)}).",
        remedy="Generate with --no-score and judge the samples on Linux with `spsbench judge`.",
    )


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))

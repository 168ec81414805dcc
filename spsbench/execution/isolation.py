"""Which layers of isolation hold here: a program that tries to get out is run before any other."""

from __future__ import annotations

import json
import os
import platform
import socket
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.execution import verdict
from spsbench.execution.verdict import Seeds, new_secret
from spsbench.execution.isolation import ProblemFailure, WorkerFailure, WorkerProcess

_TIMEOUT_S = 10.0

_PROGRAM = """
import mmap, os, socket

def works(attempt):
    try:
        attempt()
        return True
    except BaseException:
        return False

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def canary(secret, fresh, port):
    attempts = {
        "read a file": lambda: open(secret).read(),
        "make a file": lambda: open(fresh, "w"),
        "open a connection": lambda: socket.create_connection(("127.0.0.1", port), 1),
        "open a socket": lambda: socket.socket(socket.AF_UNIX),
        "fork": fork,
        "execute": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "signal its parent": lambda: os.kill(os.getppid(), 0),
        "take 2 GiB": lambda: mmap.mmap(-1, 2 << 30),
    }
    return [name for name, attempt in attempts.items() if works(attempt)]

def lazy():
    import colorsys, hashlib
    return hashlib.sha256(b"").hexdigest()[:4] + str(colorsys.ONE_THIRD)[:3]
"""
_TEST = """
def check(candidate):
    leaks = candidate(*{arguments})
    assert leaks == [], "a program could " + ", ".join(leaks)
"""
_LAZY_TEST = """
def check(candidate):
    assert candidate() == "e3b00.3", "the standard library cannot be read"
"""
_LYING_TEST = """
def check(candidate):
    assert candidate() == "this"
"""


def holds(layers: Collection[str]) -> str | None:
    """Whether the canary stays in and right and wrong programs are distinguished: None, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o777)  # whatever user the program runs as: only the sandbox is to stop it
        secret, fresh = Path(folder) / "secret", Path(folder) / "fresh"
        secret.write_text("secret", encoding="ascii")
        arguments = json.dumps([str(secret), str(fresh), server.getsockname()[1]])
        fault = _ask(layers, [("canary", _TEST.format(arguments=arguments), True), *_ORDINARY])
        return fault or ("a program made a file" if fresh.exists() else None)


def works(layers: Collection[str]) -> str | None:
    """Whether right and wrong programs are distinguished; nothing about what a program could do."""
    return _ask(layers, _ORDINARY)


_ORDINARY = [("lazy", _LAZY_TEST, True), ("lazy", _LYING_TEST, False)]


def _ask(layers: Collection[str], questions: list[tuple[str, str, bool]]) -> str | None:
    try:
        worker = WorkerProcess(layers)
    except WorkerFailure as failure:
        return str(failure)
    try:
        for entry_point, test, right in questions:
            problem = {"task_id": "canary", "prompt": "", "entry_point": entry_point, "test": test}
            job = {"problem": problem, "completion": _PROGRAM, "timeout_s": _TIMEOUT_S}
            seeds = Seeds.of(new_secret(), "canary").message()
            result = worker.ask({**job, "seeds": seeds})["result"]
            if (result == verdict.PASSED) is not right:
                return str(result).removeprefix("failed: AssertionError: ")
    except (WorkerFailure, ProblemFailure) as failure:
        return str(failure)
    finally:
        worker.close()
    return None


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
        name: its layers, as ``bubblewrap+landlock+seccomp``; ``unsafe (...)`` without a sandbox.
        layers: of each program's sandbox, in the names of ``sandbox``.
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
    """The strongest level that the canary cannot escape, probed once per process."""
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
        remedy="Generate with --no-score and judge the samples on Linux with `spsbench score`.",
    )


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))

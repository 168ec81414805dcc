"""Start judges' processes, and find the layers that hold here: a program that tries to get out runs first."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import spsbench
from spsbench.base import UsageError
from spsbench.parts.judge.inside import labels
from spsbench.parts.judge.messages import FILE_MADE
from spsbench.parts.judge.verdict import Seeds

# The judge keeps its deadlines itself; beyond this its process hangs.
_GRACE_S = 60.0


class WorkerFailure(Exception):
    """The judge's process died, hung or answered nonsense; says nothing about the program."""


class ProblemFailure(Exception):
    """The problem cannot be judged with; asking again would not help."""


class WorkerProcess:
    """One ``spsbench.parts.judge.worker`` process, asked one job at a time. In ``hello`` the sandbox says its
    ``uid`` and ``landlock_abi``."""

    def __init__(self, layers: Collection[str], number: int | None = None) -> None:
        self._layers, self._number = layers, number
        self._process: subprocess.Popen[str] | None = None
        self.restart()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its answer ``{"result", "cpu_s"}``."""
        if self._process is None:
            raise WorkerFailure("the judge's process is gone")
        line = self._exchanged_line(float(job["wall_s"]) + _GRACE_S, json.dumps(job) + "\n")
        return _reply(line, "result")

    def restart(self) -> None:
        """Start the process in place of any earlier one."""
        self.close()
        here = str(Path(spsbench.__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        search_path = os.pathsep.join([here, inherited] if inherited else [here])
        place = [] if self._number is None else [str(self._number)]
        layers = "+".join(sorted(self._layers))
        self._process = subprocess.Popen(
            # -P: a random.py in the current directory must not shadow the library's.
            [sys.executable, "-P", "-m", "spsbench.parts.judge.worker", layers, *place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"},
            text=True,
            encoding="utf-8",
            # Its own session: Ctrl-C is for the benchmark to handle.
            start_new_session=True,
        )
        try:
            self.hello = _reply(self._exchanged_line(_GRACE_S), "hello")["hello"]
        except WorkerFailure:
            self.close()
            raise

    def close(self) -> None:
        """End the process and release its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        # Its sandbox sees the socket closed and ends; so does whatever runs in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a job still buffered at its death
                    stream.close()

    def _exchanged_line(self, patience_s: float, message: str = "") -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(message)
            process.stdin.flush()
            poll = select.poll()  # not select(), which knows no descriptor above 1023
            poll.register(process.stdout.fileno(), select.POLLIN)
            if not poll.poll(patience_s * 1000):
                raise WorkerFailure(f"the judge's process hung for {patience_s:.0f} s")
            return process.stdout.readline()
        except (OSError, ValueError) as error:  # ValueError: closed while it was asked
            raise WorkerFailure(f"the judge's process is gone ({error})") from error


def _reply(line: str, field: str) -> dict[str, Any]:
    if not line:
        raise WorkerFailure("the judge's process ended without an answer")
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise WorkerFailure(f"the judge's process answered {line[:80]!r}") from error
    if isinstance(reply, dict) and "broken" in reply:
        raise ProblemFailure(reply["broken"])
    if not isinstance(reply, dict) or field not in reply:
        raise WorkerFailure(str(reply.get("error") if isinstance(reply, dict) else reply))
    return reply


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


def sandbox_fault(layers: Collection[str]) -> str | None:
    """What the canary could do in a sandbox, or a program that is judged wrongly; None if neither."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o777)  # whatever user the program runs as: only the sandbox is to stop it
        secret, fresh = Path(folder) / "secret", Path(folder) / "fresh"
        secret.write_text("secret", encoding="ascii")
        arguments = json.dumps([str(secret), str(fresh), server.getsockname()[1]])
        fault = judging_fault(layers, ("canary", _TEST.format(arguments=arguments), True))
        return fault or (FILE_MADE if fresh.exists() else None)


def judging_fault(layers: Collection[str], *more: tuple[str, str, bool]) -> str | None:
    """A program that is judged wrongly, whatever it could do to the machine; None if there is none.

    Programs are an entry point, its test, and whether it passes; ``more`` of them come before the usual two.
    """
    try:
        worker = WorkerProcess(layers)
    except WorkerFailure as failure:
        return str(failure)
    try:
        for entry_point, test, right in (*more, ("lazy", _LAZY_TEST, True), ("lazy", _LYING_TEST, False)):
            problem = {"task_id": "canary", "prompt": "", "entry_point": entry_point, "test": test}
            job = {"problem": problem, "completion": _PROGRAM, "timeout_s": _TIMEOUT_S, "wall_s": _TIMEOUT_S}
            seeds = Seeds.of(secrets.token_bytes(16), "canary")
            result = worker.ask({**job, "seeds": asdict(seeds)})["result"]
            if (result == labels.PASSED) is not right:
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


@dataclass(frozen=True)
class IsolationLevel:
    """What isolates a generated program from this machine; ``layers`` of each program's sandbox are named as
    in ``sandbox``, and ``name`` is, e.g., ``bubblewrap+landlock+seccomp``, or ``unsafe (...)`` without one.
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
    level, missing = _strongest_level()
    if level is not None:
        return level
    if unsafe:
        return _level_without_sandbox(missing)
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
def _strongest_level() -> tuple[IsolationLevel | None, tuple[str, ...]]:
    missing: list[str] = []
    if not hasattr(os, "fork"):
        return None, (f"{platform.system()} cannot fork",)
    for number, layers in enumerate(LEVELS, start=1):
        full = (*layers, _LIMITS)
        fault = sandbox_fault(full)
        if fault is None:
            return IsolationLevel(number, "+".join(layers), full, tuple(missing)), ()
        missing.append(f"{'+'.join(layers)}: {fault}")
    return None, tuple(missing)


@cache
def _level_without_sandbox(missing: tuple[str, ...]) -> IsolationLevel:
    """The strongest that judges rightly; ``missing`` says why no sandbox works."""
    in_container = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    where = "in a container" if in_container else "not in a container"
    for layers in (("seccomp", _LIMITS), (_LIMITS,)):
        if judging_fault(layers) is None:
            return IsolationLevel(_NONE, f"unsafe ({'+'.join(layers)}, {where})", layers, missing)
    raise UsageError(
        f"generated programs cannot be run on this machine at all ({'; '.join(missing)}).",
        remedy="Generate with --no-score and judge the samples on Linux with `spsbench score`.",
    )

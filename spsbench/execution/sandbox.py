"""The judge's side of a sandbox: start the zygote, begin a program, end it, close.

Layers are named ``bubblewrap``, ``namespaces``, ``landlock``, ``seccomp`` and ``limits``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.execution.sandbox import bubblewrap_command, exposure, find_bubblewrap, interpreter

MEMORY_BYTES = 1 << 30
"""Address space of one program."""

PATIENCE_S = 20.0
"""Starting and killing take milliseconds; beyond this the sandbox itself is broken."""

_INSIDE = Path(__file__).with_name("inside")
# In the order in which they need each other.
_MODULES = "kernel syscalls seccomp landlock limits locks namespaces frames wire program zygote"
_ENVIRONMENT = {
    "PATH": "/nowhere",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # the same order of sets in every run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # threads are refused
}


class SandboxFailure(Exception):
    """The sandbox did not start, lock or end a program; says nothing about the program."""


@dataclass(frozen=True)
class Ending:
    """How a program's process ended.

    Attributes:
        status: as ``os.wait4`` gives it.
        cpu_s: seconds of CPU that it used.
    """

    status: int
    cpu_s: float


class Sandbox:
    """One zygote and at most one program at a time."""

    def __init__(self, layers: Collection[str]) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(PATIENCE_S)
        try:
            with theirs:
                self._process = _start(layers, theirs)
        except OSError as error:
            self._control.close()
            raise SandboxFailure(f"the sandbox does not start ({error})") from error
        try:
            self.hello = self._greet(layers)
        except SandboxFailure:
            self.close()
            raise

    def begin(self, cpu_s: float) -> tuple[int, int]:
        """Fork a locked process; (descriptor of requests to it, of replies), for the caller to close.

        Args:
            cpu_s: limit of its CPU time, rounded up to whole seconds.
        """
        their_requests, requests = os.pipe()
        replies, their_replies = os.pipe()
        job = {"cpu_s": math.ceil(cpu_s)}
        nothing = os.open(os.devnull, os.O_RDWR)
        theirs = [their_requests, their_replies, nothing]
        try:
            socket.send_fds(self._control, [json.dumps(job).encode()], theirs)
        except OSError as error:
            os.close(requests)
            os.close(replies)
            raise SandboxFailure(f"the zygote is gone ({error})") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(requests, False)
        os.set_blocking(replies, False)
        return requests, replies

    def end(self) -> Ending:
        """Kill the program, if it still runs; it is dead when this returns."""
        return Ending(**self._ask(b"end"))

    def close(self) -> None:
        """End the zygote with all that it started."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _greet(self, layers: Collection[str]) -> dict[str, Any]:
        settings = {"layers": sorted(layers), "packages": exposure().packages, "memory_bytes": MEMORY_BYTES}
        hello = self._ask(json.dumps({"modules": _sources(), "settings": settings}).encode() + b"\n")
        if "error" in hello:
            raise SandboxFailure(str(hello["error"]))
        return hello

    def _ask(self, message: bytes) -> dict[str, Any]:
        answer = b""
        try:
            self._control.sendall(message)
            while not answer.endswith(b"\n"):
                part = self._control.recv(4096)
                if not part:
                    raise SandboxFailure("the zygote ended")
                answer += part
        except OSError as error:
            raise SandboxFailure(f"the zygote does not answer ({error})") from error
        found: dict[str, Any] = json.loads(answer)
        return found


def mark(judge_pid: int) -> str:
    """The last argument of the sandbox of a judge's process and of every fork, to find them by."""
    return f"spsbench-sandbox-of-{judge_pid}"


def _start(layers: Collection[str], control: socket.socket) -> subprocess.Popen[bytes]:
    prefix: list[str] = []
    if "bubblewrap" in layers:
        program = find_bubblewrap()
        if program is None:
            raise OSError("bwrap is not installed")
        prefix = bubblewrap_command(program, exposure())
    bootstrap = (_INSIDE / "bootstrap.py").read_text(encoding="utf-8")
    return subprocess.Popen(
        # No site, no user's folders, nothing from the current directory, no bytecode written.
        [*prefix, interpreter(), "-s", "-S", "-P", "-B", "-c", bootstrap, mark(os.getpid())],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )


def _sources() -> list[list[str]]:
    package = "spsbench.execution.inside"
    parents = [["spsbench", ""], ["spsbench.execution", ""], [package, ""]]
    read = ((name, (_INSIDE / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES.split())
    return [*parents, *([f"{package}.{name}", source] for name, source in read)]

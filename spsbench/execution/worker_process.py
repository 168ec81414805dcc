"""The near side of a judge's process: start, query, terminate."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import spsbench
from spsbench.execution import verdict

# The judge keeps its deadlines itself; beyond this its process hangs.
_GRACE_S = 60.0


class WorkerFailure(Exception):
    """The judge's process died, hung or answered nonsense; says nothing about the program."""


class ProblemFailure(Exception):
    """The problem cannot be judged with; asking again would not help."""


class WorkerProcess:
    """One ``spsbench.execution.worker`` process, asked one job at a time.

    Attributes:
        hello: what the sandbox says of itself: ``uid``, ``landlock_abi``.
    """

    def __init__(self, layers: Collection[str], number: int | None = None) -> None:
        self._layers, self._number = layers, number
        self._process: subprocess.Popen[str] | None = None
        self.hello = self._start()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its answer ``{"result", "cpu_s"}``."""
        if self._process is None:
            raise WorkerFailure("the judge's process is gone")
        line = self._read(float(job["timeout_s"]) + _GRACE_S, json.dumps(job) + "\n")
        if not line and self._process.wait() == -signal.SIGPROF:
            # The judge computed in C with an answer, deaf to its alarm, until the kernel ended it.
            self.restart()
            return {"result": verdict.TIMED_OUT, "cpu_s": float(job["timeout_s"])}
        return _reply(line, "result")

    def restart(self) -> None:
        """Replace the process by a fresh one."""
        self.close()
        self.hello = self._start()

    def close(self) -> None:
        """End the process and release its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill_session(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a job still buffered at its death
                    stream.close()

    def _start(self) -> dict[str, Any]:
        self._process = _spawn(self._layers, self._number)
        try:
            hello: dict[str, Any] = _reply(self._read(_GRACE_S), "hello")["hello"]
        except WorkerFailure:
            self.close()
            raise
        return hello

    def _read(self, patience_s: float, message: str = "") -> str:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(message)
            process.stdin.flush()
            if not _readable(process.stdout.fileno(), patience_s):
                raise WorkerFailure(f"the judge's process hung for {patience_s:.0f} s")
            return process.stdout.readline()
        except (OSError, ValueError) as error:  # ValueError: closed while it was asked
            raise WorkerFailure(f"the judge's process is gone ({error})") from error


def _readable(descriptor: int, patience_s: float) -> bool:
    poll = select.poll()  # not select(), which knows no descriptor above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def _spawn(layers: Collection[str], number: int | None) -> subprocess.Popen[str]:
    here = str(Path(spsbench.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    search_path = os.pathsep.join([here, inherited] if inherited else [here])
    place = [] if number is None else [str(number)]
    return subprocess.Popen(
        # -P: a random.py in the current directory must not shadow the library's.
        [sys.executable, "-P", "-m", "spsbench.execution.worker", "+".join(sorted(layers)), *place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"},
        text=True,
        encoding="utf-8",
        # Its own session: Ctrl-C is for the benchmark to handle.
        start_new_session=True,
    )


def _kill_session(process: subprocess.Popen[str]) -> None:
    # Its sandbox sees the socket closed and ends; so does whatever runs in it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reply(line: str, wanted: str) -> dict[str, Any]:
    if not line:
        raise WorkerFailure("the judge's process ended without an answer")
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise WorkerFailure(f"the judge's process answered {line[:80]!r}") from error
    if isinstance(reply, dict) and "broken" in reply:
        raise ProblemFailure(reply["broken"])
    if not isinstance(reply, dict) or wanted not in reply:
        raise WorkerFailure(str(reply.get("error") if isinstance(reply, dict) else reply))
    return reply

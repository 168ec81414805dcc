"""The near side of a checker process: start it, ask it, bury it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import spsbench

# The checker kills a program one second after its deadline; beyond that the worker itself hangs.
_GRACE_S = 30.0


class WorkerFailure(Exception):
    """The checker process died, hung or answered nonsense; says nothing about the program."""


class WorkerProcess:
    """One ``spsbench.execution.worker`` process, asked one job at a time."""

    def __init__(self) -> None:
        self._process = self._start()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its answer ``{"passed", "result"}``.

        Raises:
            WorkerFailure: no answer (the process died, or hung for 30 s past the program's
                deadline), or an answer that says that the checker failed.
        """
        process = self._process
        watchdog = threading.Timer(float(job["timeout_s"]) + _GRACE_S, _kill_session, [process])
        watchdog.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:
            raise WorkerFailure(f"the checker process is gone ({error})") from error
        finally:
            watchdog.cancel()
        return _reply(line)

    def restart(self) -> None:
        """Replace the process by a fresh one."""
        self.close()
        self._process = self._start()

    def close(self) -> None:
        """End the process and release its pipes."""
        process = self._process
        _kill_session(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a job still buffered at its death
                    stream.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        here = str(Path(spsbench.__file__).resolve().parent.parent)
        inherited = os.environ.get("PYTHONPATH")
        search_path = os.pathsep.join([here, inherited] if inherited else [here])
        return subprocess.Popen(
            # -P: a random.py in the current directory must not shadow the library's.
            [sys.executable, "-P", "-m", "spsbench.execution.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search_path},
            text=True,
            encoding="utf-8",
            # A session of its own: Ctrl-C is for the benchmark to handle, and close() can end the
            # worker together with the program that it is running.
            start_new_session=True,
        )


def _kill_session(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reply(line: str) -> dict[str, Any]:
    if not line:
        raise WorkerFailure("the checker process ended without an answer")
    try:
        reply = json.loads(line)
    except ValueError as error:
        raise WorkerFailure(f"the checker process answered {line[:80]!r}") from error
    if not isinstance(reply, dict) or "passed" not in reply:
        raise WorkerFailure(f"the checker failed: {reply.get('error') if isinstance(reply, dict) else reply}")
    return reply

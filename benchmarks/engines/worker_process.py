"""A worker seen from the driver: a process that is stopped while another is measured."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.engines.messages import Answer, Failure, Loaded, Message, Request, Settings, read, written

ROOT = Path(__file__).resolve().parents[2]
_LOAD_S, _ANSWER_S, _END_S = 900.0, 600.0, 10.0


class WorkerFailed(Exception):
    """A worker answered with an error, too late or not at all."""


class WorkerProcess:
    """One engine, alone or with its draft, in a process group of its own.

    It is stopped (SIGSTOP, with all its children) unless it is ``awake``: pools of others spin while
    they wait for work, and what spins has a core.

    Args:
        python: the interpreter of the engine's environment.
        module: the worker, run as ``-m``.
        environment: on top of ours.
        log: what it prints.
    """

    def __init__(self, python: Path, module: str, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment),
                start_new_session=True,
            )
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run meanwhile."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def load(self, settings: Settings) -> Loaded:
        """Load the models.

        Raises:
            WorkerFailed: see there.
        """
        found = self._ask(settings, _LOAD_S)
        assert isinstance(found, Loaded)
        return found

    def generate(self, request: Request) -> Answer:
        """Decode one sequence.

        Raises:
            WorkerFailed: see there.
        """
        found = self._ask(request, _ANSWER_S)
        assert isinstance(found, Answer)
        return found

    def close(self) -> None:
        """End it, gently first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, message: Message, limit_s: float) -> Message:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(written(message))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"it ended; see {self._log}") from None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            what = "it ended" if ready else f"no answer after {limit_s:.0f} s"
            raise WorkerFailed(f"{what}; see {self._log}")
        answer = read(line)
        if isinstance(answer, Failure):
            raise WorkerFailed(f"{answer.error}; see {self._log}")
        return answer

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

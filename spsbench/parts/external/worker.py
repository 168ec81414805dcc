"""An engine in its own process, spoken to by the protocol."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from spsbench.base import ordinary, protocol

MOST_BYTES = 8 << 20
"""Of one answer: far more than the longest text takes as token ids."""


_PART = 1 << 16


class NoLine(Exception):
    """There is no line; the text says why."""


class Lines:
    """A line to a process and a line from it, each time within a limit."""

    def __init__(self, questions: int, answers: int) -> None:
        os.set_blocking(questions, False)  # it may never read
        self._asked, self._answers = questions, answers

    def answer(self, line: str, limit_s: float) -> str:
        end = time.monotonic() + limit_s
        if self._ready(self._answers, select.POLLIN, 0.0) and os.read(self._answers, 1):
            raise NoLine("it wrote before it was asked")
        left = memoryview(line.encode())
        received = bytearray()
        while b"\n" not in received[-_PART:]:
            waits = (self._asked, select.POLLOUT) if left else (self._answers, select.POLLIN)
            if not self._ready(*waits, end - time.monotonic()):
                raise NoLine(f"no answer after {limit_s:g} s")
            if left:
                left = left[os.write(self._asked, left[:_PART]) :]
                continue
            part = os.read(self._answers, _PART)
            if not part:
                raise NoLine("it ended")
            received += part
            if len(received) > MOST_BYTES:
                raise NoLine(f"a line of more than {MOST_BYTES >> 20} MB")
        if not received.endswith(b"\n") or received.count(b"\n") > 1:
            first, _, _ = received.decode(errors="replace").partition("\n")
            raise NoLine(f"it wrote more than one line, the first {protocol.shortened(first)}")
        return received.decode(errors="replace")

    def _ready(self, descriptor: int, event: int, limit_s: float) -> bool:
        poll = select.poll()  # not select(), which knows no descriptor above 1023
        poll.register(descriptor, event)
        return bool(poll.poll(max(0.0, limit_s) * 1000))


MOST_FAILURES = 3
"""Requests in a row without an answer, after which an engine is given up."""


class Failures:
    """Gives an engine up after ``MOST_FAILURES`` in a row; a wave without any answer is one."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        try:
            yield
        except protocol.PeerGone:
            raise
        except protocol.PeerError as error:
            self._in_a_row += 1
            if self._in_a_row < MOST_FAILURES:
                raise
            why = f"{self._in_a_row} requests in a row failed, the last: {error}"
            raise protocol.PeerGone(why) from error
        self._in_a_row = 0

    def wave(self, ask: Callable[[], protocol.Together]) -> protocol.Together:
        with self.counted():
            results = ask()
            if results.errors and not any(results.answers):
                why = f"of a wave nothing is answered: {next(iter(results.errors.values()))}"
                raise protocol.PeerError(why)
        return results


_END_S = 10.0

MOST_LOG_BYTES = 64 << 20
"""Of what one process of a worker may write on stderr."""

_LOUD = 3
_GUARD = """
import os, select, signal, sys
group, said, left = map(int, sys.argv[1:])

def end():
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass

def keep():
    global left
    part = os.read(said, 65536)
    left -= len(part)
    if left < 0:
        end()
        sys.exit(LOUD)
    try:
        os.write(1, part)
    except OSError:
        pass
    return part

both = select.poll()
for descriptor in (0, said):
    both.register(descriptor, select.POLLIN)
while True:
    ready = dict(both.poll())
    if 0 in ready:
        if not os.read(0, 1):
            end()
        while dict(both.poll(0)).get(said, 0) & select.POLLIN and keep():
            pass
        break
    if not keep():
        both.unregister(said)
""".replace("LOUD", str(_LOUD))
"""Writes a worker's stderr to its log, and ends its processes when it writes too much or spsbench is killed.

A stopped process would keep its memory for good. One in a session of its own is not among them.

A byte on the pipe that spsbench holds says that the worker was ended, its end without one that spsbench is
gone.
"""


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """How a worker is started; ``describe`` may take ``load_s`` and ``generate`` ``answer_s`` seconds."""

    argv: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    load_s: float = 900.0
    answer_s: float = 300.0


class Worker:
    """A ``Peer`` in a process, with its own process group.

    A request whose answer is late, of another request or no answer at all costs that one: the process is
    ended, and restarted for the next. After ``MOST_FAILURES`` in a row it is given up.
    """

    def __init__(self, command: WorkerCommand, load: protocol.Load, *, paused: bool = False) -> None:
        self._command, self._load, self._paused = command, load, paused
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self._described: protocol.Described | None = None
        self._asked = 0
        self._failures = Failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Id of the process and of its group; None while there is none."""
        return None if self._process is None else self._process.pid

    def describe(self) -> protocol.Described:
        if self._process is None:
            self._start()
        assert self._described is not None
        return self._described

    def generate(self, ask: protocol.Ask) -> protocol.Answer:
        """See ``Peer.generate``; the answer is not ``checked`` yet."""
        self.describe()
        with self._failures.counted():
            return self._answer(protocol.GENERATE, ask, protocol.Answer, self._command.answer_s)

    def together(self, wave: protocol.Wave) -> protocol.Together:
        """See ``Batching.together``; the answers are not ``checked`` yet."""
        self.describe()
        limit_s = self._command.answer_s * -(-len(wave.asks) // wave.at_once)
        results = self._failures.wave(
            lambda: self._answer(protocol.TOGETHER, wave, protocol.Together, limit_s)
        )
        if len(results.answers) != len(wave.asks):
            raise protocol.PeerError(f"it gave {len(results.answers)} answers to {len(wave.asks)} requests")
        return results

    def close(self) -> None:
        """End the process, gently first; at once if that is interrupted."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._signal(signal.SIGCONT)
            with suppress(OSError):
                self._process.stdin.write(protocol.request(self._asked + 1, protocol.BYE).encode())
                self._process.stdin.flush()
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        finally:
            self._end()

    def _start(self) -> None:
        self._command.log.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        try:
            with open(self._command.log, "ab", opener=ordinary) as log:
                self._process = subprocess.Popen(
                    self._command.argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=write_end,
                    env=os.environ | dict(self._command.environment),
                    start_new_session=True,
                )
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _GUARD]
                    + [str(number) for number in (self._process.pid, read_end, MOST_LOG_BYTES)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[read_end],
                    start_new_session=True,
                )
        except OSError as error:
            self._end()  # without its guard it would outlive this process
            raise protocol.PeerGone(f"it does not start: {error.strerror or error}") from error
        finally:
            os.close(read_end)
            os.close(write_end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdin.fileno(), self._process.stdout.fileno())
        try:
            described = self._answer(protocol.DESCRIBE, self._load, protocol.Described, self._command.load_s)
        except protocol.PeerError as error:
            self._end()
            raise protocol.PeerGone(f"it does not load the models: {error}") from error
        if self._described not in (None, described):
            self._end()
            raise protocol.PeerGone("after a restart it describes itself differently")
        self._described = described

    def _answer(
        self, method: str, params: protocol.Params, kind: type[protocol.Kind], limit_s: float
    ) -> protocol.Kind:
        self._asked += 1
        try:
            assert self._lines is not None
            with self._awake():
                message = protocol.parsed(
                    self._lines.answer(protocol.request(self._asked, method, params), limit_s)
                )
            if message["id"] != self._asked:
                why = f"it answered request {message['id']} where {self._asked} was asked"
                raise protocol.ProtocolError(why)
            if "error" not in message:
                return protocol.read(kind, message.get("result"))
        except (protocol.ProtocolError, NoLine, BrokenPipeError) as error:
            reason = "it ended" if isinstance(error, BrokenPipeError) else str(error)
            if self._end():
                reason = f"it wrote more than {MOST_LOG_BYTES >> 20} MB on stderr"
            raise protocol.PeerError(f"{reason}; see {self._command.log}") from error
        except BaseException:  # interrupted: its answer would go to the next request
            self._end()
            raise
        raise protocol.PeerError(f"it says {protocol.shortened(str(message['error']), 200)}")

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if not self._paused:
            yield
            return
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _end(self) -> bool:
        """At once, with its group; whether it had been ended for what it wrote on stderr."""
        if self._process is None:
            return False
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process = self._lines = None
        guard, self._guard = self._guard, None
        if guard is None:
            return False
        with suppress(OSError):
            guard.communicate(b"!")
        return guard.returncode == _LOUD

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

"""The judge's process: JSON lines in, JSON lines out; it owns one sandbox, and passes messages between a
program in it and the program's tests, which are in it too.

Run as ``python -m spsbench.parts.judge.worker LAYERS [NUMBER]``. It holds no model and no thread, and runs or
parses nothing of a job: tests may be a stranger's as programs are. A job is
``{"problem", "completion", "timeout_s", "wall_s", "seeds"}``, with ``"whole"`` where the completion is a
program by itself; the answer is ``{"result", "cpu_s"}``, or
``{"error"}`` for a fault of judge or sandbox, or ``{"broken"}`` for one of the problem. The first line,
before any job, is ``{"hello"}`` with what the sandbox says of itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from spsbench.parts.judge.inside import labels, limits, wire
from spsbench.parts.judge.inside.check import CALL, MAX_JOB_BYTES, SAY, BrokenProblem, ProgramOver
from spsbench.parts.judge.inside.wire import DeadlinePassed, WireError
from spsbench.parts.judge.sandbox import PATIENCE_S, Sandbox, SandboxFailure
from spsbench.parts.judge.verdict import Seeds

_MEMORY_BYTES = 4 << 30

# Of the process that tests any number of programs; the judge keeps the deadline of each.
_TESTS_CPU_S = 86_400.0

_MOST_CODES = 1024

_UNASKED = labels.failed("ProtocolError", "an answer to no question")


class Session:
    """Messages with one program; after ``ProgramOver`` there are no more.

    Each question begins with bytes drawn for it, which its answer must repeat. So what a program wrote
    before it was asked is an answer to nothing, however it was timed.

    Attributes:
        deadline: for everything, on ``time.monotonic``'s clock; at first for the locks alone.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self.deadline = time.monotonic() + PATIENCE_S

    def wait_for_lock(self) -> None:
        """The program's process has then locked itself up; nothing was sent to it before."""
        _wait_for_lock(self._replies, self.deadline)

    def start(self, program: str, entry_point: str, seed: str) -> None:
        try:
            answer = wire.loads(self.exchange(wire.dumps([program, entry_point, seed])))
        except WireError as error:
            raise _misbehaved(str(error)) from None
        match answer:
            case ["ready"]:
                return
            case ["raised", "MemoryError", str()]:
                raise ProgramOver(labels.OUT_OF_MEMORY)
            case ["raised", str(name), str(message)]:
                raise ProgramOver(labels.failed(name, message))
        raise _misbehaved("not an answer")

    def exchange(self, request: bytes) -> bytes:
        """Send a request to the program's process and return its answer, as it came."""
        question = _new_question()
        try:
            if wire.waiting(self._replies):
                raise ProgramOver(_UNASKED)
            wire.send(self._requests, question + request, self.deadline)
            answer = wire.receive(self._replies, self.deadline)
        except wire.PipeClosed:
            raise ProgramOver(labels.ENDED) from None
        except wire.TooLong:
            raise _misbehaved("too long an answer") from None
        except DeadlinePassed:
            raise ProgramOver(labels.TIMED_OUT) from None
        if answer[: len(question)] != question:
            raise ProgramOver(_UNASKED)
        return answer[len(question) :]


def _new_question() -> bytes:
    return os.urandom(wire.QUESTION_BYTES)


def _misbehaved(message: str) -> ProgramOver:
    return ProgramOver(labels.failed("ProtocolError", message))


def _wait_for_lock(replies: int, deadline: float) -> None:
    with contextlib.suppress(wire.PipeClosed, wire.TooLong, WireError, DeadlinePassed):
        if wire.loads(wire.receive(replies, deadline)) == ["locked"]:
            return
    raise SandboxFailure("a process did not lock itself up")


class Tests:
    """The process of one problem's tests, which stays for programs of the same problem that come one after
    the other, unless it had to be left in the middle of one."""

    def __init__(self, sandbox: Sandbox, codes: dict[tuple[str, str], bytes], prompt: str, test: str) -> None:
        self.text = prompt, test
        self.left = True
        self._sandbox = sandbox
        self._orders, self._answers = sandbox.begin("tests", _TESTS_CPU_S)
        try:
            deadline = time.monotonic() + PATIENCE_S
            _wait_for_lock(self._answers, deadline)
            first = ["code", codes[self.text]] if self.text in codes else ["text", prompt, test]
            try:
                self._send(wire.dumps(first), deadline)
                said = self._said(self._received(deadline))
            except DeadlinePassed:
                raise BrokenProblem(f"its test is not read in {PATIENCE_S:.0f} s") from None
        except BaseException:
            self.close()
            raise
        if said[0] == "code":  # bytes, never unpacked here
            if len(codes) >= _MOST_CODES:
                codes.clear()
            codes[self.text] = said[1]
        self.left = False

    def check(self, session: Session, entry_point: str, seed: str) -> str:
        """The label of a program that has started: its tests may say what they like, in the words of a
        verdict."""
        self.left = True
        self._send(wire.dumps([entry_point, seed]), session.deadline)
        while (message := self._received(session.deadline))[:1] == CALL:
            self._send(session.exchange(message[1:]), session.deadline)
        said = self._said(message)
        if said[0] != "result" or not isinstance(said[1], str) or not labels.is_label(said[1]):
            raise SandboxFailure("tests said what is no verdict")
        self.left = False
        late = said[1] == labels.PASSED and time.monotonic() > session.deadline
        return labels.TIMED_OUT if late else said[1]

    def _said(self, message: bytes) -> list[Any]:
        try:
            said = wire.loads(message[1:]) if message[:1] == SAY else None
        except WireError:
            said = None
        match said:
            case ["broken", str(why)]:
                raise BrokenProblem(why)
            case [str(), *_]:
                return list(said)
        raise SandboxFailure("tests said what is no message")

    def _send(self, message: bytes, deadline: float) -> None:
        try:
            wire.send(self._orders, message, deadline)
        except wire.PipeClosed as error:
            raise SandboxFailure("the process of the tests ended") from error

    def _received(self, deadline: float) -> bytes:
        try:
            return wire.receive(self._answers, deadline, MAX_JOB_BYTES)
        except (wire.PipeClosed, wire.TooLong) as error:
            raise SandboxFailure("the process of the tests ended, or said too much") from error

    def close(self) -> None:
        for descriptor in (self._orders, self._answers):
            os.close(descriptor)
        self._sandbox.end("tests")


class Judge:
    """One sandbox and who is in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._codes: dict[tuple[str, str], bytes] = {}
        self._tests: Tests | None = None

    def judge(
        self,
        problem: dict[str, str],
        completion: str,
        timeout_s: float,
        wall_s: float,
        seeds: Seeds,
        *,
        whole: bool = False,
    ) -> dict[str, Any]:
        """Run ``check(candidate)`` of a problem on a program, for ``timeout_s`` of CPU time and ``wall_s`` in
        all: ``result``, the label; ``cpu_s``, the seconds of CPU that the program's process used. The
        program is the prompt and its completion, or the completion alone if that is ``whole``."""
        program = completion if whole else problem["prompt"] + completion
        tests = self._tests_of(problem["prompt"], problem["test"])
        descriptors = self._sandbox.begin("program", timeout_s + 1)
        session = Session(*descriptors)
        try:
            session.wait_for_lock()
            session.deadline = time.monotonic() + wall_s
            session.start(program, problem["entry_point"], seeds.program)
            label = tests.check(session, problem["entry_point"], seeds.tests)
        except ProgramOver as over:
            label = over.label
        except DeadlinePassed:
            label = labels.TIMED_OUT
        finally:
            cpu_s = self._sandbox.end("program")
            for descriptor in descriptors:
                os.close(descriptor)
        # The kernel ends a program some time beyond its CPU seconds, and one that ended late is late, too.
        return {"result": labels.TIMED_OUT if cpu_s > timeout_s else label, "cpu_s": cpu_s}

    def _tests_of(self, prompt: str, test: str) -> Tests:
        now = self._tests
        if now is not None and (now.left or now.text != (prompt, test)):
            self._tests = None
            now.close()
        if self._tests is None:
            self._tests = Tests(self._sandbox, self._codes, prompt, test)
        return self._tests


def _answer(judge: Judge, job: dict[str, Any]) -> dict[str, Any]:
    try:
        seeds = Seeds(**job["seeds"])
        whole = job.get("whole", False)
        limits_s = job["timeout_s"], job["wall_s"]
        return judge.judge(job["problem"], job["completion"], *limits_s, seeds, whole=whole)
    except SandboxFailure as failure:
        return {"error": str(failure)}
    except BrokenProblem as fault:
        return {"broken": str(fault)}
    except Exception as error:  # a fault of the judge is reported, never scored
        return {"error": f"{type(error).__name__}: {error}"}


def main(layers: list[str], number: int | None = None) -> None:
    """Serve jobs until stdin ends; with a number this process stays on one CPU with all that it starts.

    Judge, zygote, tests and program take turns, and a message to another CPU wakes it up, which costs more
    than the message.
    """
    jobs, answers = _private_streams()
    with contextlib.suppress(OSError):  # if memory runs out, this is killed before the benchmark is
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    limits.lower("AS", _MEMORY_BYTES, hard=False)
    if number is not None and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {allowed[number % len(allowed)]})
    try:
        sandbox = Sandbox(layers)
    except SandboxFailure as failure:
        _write(answers, {"error": str(failure)})
        return
    _write(answers, {"hello": sandbox.hello})
    judge = Judge(sandbox)
    for line in jobs:
        _write(answers, _answer(judge, json.loads(line)))
    sandbox.close()


def _private_streams() -> tuple[TextIO, TextIO]:
    # What is printed must not get into the answers.
    jobs = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return jobs, answers


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1].split("+"), int(sys.argv[2]) if len(sys.argv) > 2 else None)

"""The judge's process: JSON lines in, JSON lines out; it owns one sandbox and runs the tests outside of it.

Run as ``python -m spsbench.parts.judge.worker LAYERS [NUMBER]``. It holds no model and no thread. A job is
``{"problem", "completion", "timeout_s", "seeds"}``, with ``"whole"`` where the completion is a program by
itself; the answer is ``{"result", "cpu_s"}``, or
``{"error"}`` for a fault of judge or sandbox, or ``{"broken"}`` for one of the problem. The first line,
before any job, is ``{"hello"}`` with what the sandbox says of itself.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, TextIO

from spsbench.parts.judge import verdict
from spsbench.parts.judge.inside import limits, wire
from spsbench.parts.judge.inside.wire import DeadlinePassed, WireError
from spsbench.parts.judge.sandbox import PATIENCE_S, Sandbox, SandboxFailure
from spsbench.parts.judge.verdict import Seeds

_MEMORY_BYTES = 4 << 30

# A test that computes in C with what a program answered is deaf to the alarm; this much later the
# kernel ends the judge's process by SIGPROF.
_DEAF_S = 2.0

_UNASKED = verdict.failed("ProtocolError", "an answer to no question")


class ProgramOver(BaseException):
    """The program cannot go on; ``label`` is the verdict. Not an ``Exception``: tests must not swallow it."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


class Raised(Exception):
    """The program raised something that the judge has no type for."""


class BrokenProblem(Exception):
    """The problem's own text cannot be judged with: its tests do not run, or need more than plain data."""


class Session:
    """Messages with one program; after the first ``ProgramOver`` every call raises it again.

    Each question begins with bytes drawn for it, which its answer must repeat. So what a program wrote
    before it was asked is an answer to nothing, however it was timed.

    Attributes:
        deadline: for everything, on ``time.monotonic``'s clock; at first for the locks alone.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self.deadline = time.monotonic() + PATIENCE_S
        self.label: str | None = None
        self.called = False
        self._gave = False  # whether the tests hold data that the program made

    def wait_for_lock(self) -> None:
        """Return when the program's process has locked itself up; nothing was sent to it before."""
        try:
            if wire.loads(wire.receive(self._replies, self.deadline)) == ["locked"]:
                return
        except (wire.PipeClosed, wire.TooLong, WireError, DeadlinePassed):
            pass
        raise SandboxFailure("a process did not lock itself up")

    def start(self, program: str, entry_point: str, seed: str) -> None:
        match self._exchange(wire.dumps([program, entry_point, seed])):
            case ["ready"]:
                return
            case ["raised", "MemoryError", str()]:
                raise self._over(verdict.OUT_OF_MEMORY)
            case ["raised", str(name), str(message)]:
                raise self._over(verdict.failed(name, message))
        raise self._misbehaved("not an answer")

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the program's function; mutable arguments are changed as the program changed them."""
        self.called = True
        if self.label is not None:
            raise ProgramOver(self.label)
        try:
            request = wire.dumps([list(arguments), keywords], strict=True)
        except (wire.ForeignData, wire.TooLarge) as error:
            if isinstance(error, wire.TooLarge) and not self._gave:
                raise
            # Tests that pass on what the program answered are not broken by it.
            raise self._misbehaved(str(error)) from None
        match self._exchange(request):
            case ["value", value, None]:
                self._gave = self._gave or not isinstance(value, int | float | str | None)
                return value
            case ["value", value, list(changed)]:
                self._gave = True
                for mine, theirs in zip(arguments, changed, strict=False):
                    _overwrite(mine, theirs)
                return value
            case ["raised", "MemoryError", str()]:
                raise self._over(verdict.OUT_OF_MEMORY)
            case ["raised", str(name), str(message)]:
                raise _error(name, message)
        raise self._misbehaved("not an answer")

    def _exchange(self, request: bytes) -> Any:
        """Send a request to the program's process and return its answer."""
        question = _new_question()
        try:
            if wire.waiting(self._replies):
                raise self._over(_UNASKED)
            wire.send(self._requests, question + request, self.deadline)
            answer = wire.receive(self._replies, self.deadline)
            if answer[: len(question)] != question:
                raise self._over(_UNASKED)
            return wire.loads(answer[len(question) :])
        except wire.PipeClosed:
            raise self._over(verdict.ENDED) from None
        except wire.TooLong:
            raise self._misbehaved("too long an answer") from None
        except WireError as error:
            raise self._misbehaved(str(error)) from None
        except DeadlinePassed:
            raise self._over(verdict.TIMED_OUT) from None

    def _misbehaved(self, message: str) -> ProgramOver:
        return self._over(verdict.failed("ProtocolError", message))

    def _over(self, label: str) -> ProgramOver:
        self.label = label
        return ProgramOver(label)


def _new_question() -> bytes:
    return os.urandom(wire.QUESTION_BYTES)


def _overwrite(mine: Any, theirs: Any) -> None:
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, list | bytearray):
        mine[:] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def _error(name: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    # StopIteration would end a loop of the test instead of failing it.
    if isinstance(kind, type) and issubclass(kind, Exception) and "Iteration" not in name:
        with contextlib.suppress(TypeError):  # one that takes more than a message
            error: Exception = kind(message)
            return error
    named: type[Raised] = type(name if name.isidentifier() else "Raised", (Raised,), {})
    return named(message)


def judge_program(
    sandbox: Sandbox,
    problem: dict[str, str],
    completion: str,
    timeout_s: float,
    seeds: Seeds,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """Run ``check(candidate)`` of a problem on a program, for ``timeout_s`` wall seconds in all: ``result``,
    the label; ``cpu_s``, the seconds of CPU that the program's process used. The program is the prompt and
    its completion, or the completion alone if that is ``whole``."""
    program = completion if whole else problem["prompt"] + completion
    descriptors = sandbox.begin(timeout_s + 1)
    try:
        session = Session(*descriptors)
        session.wait_for_lock()
        session.deadline = time.monotonic() + timeout_s
        try:
            with _alarm(session.deadline):
                result = _judged(session, problem, program, seeds)
        except DeadlinePassed:
            result = verdict.TIMED_OUT
        return {"result": result, "cpu_s": sandbox.end()}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _judged(session: Session, problem: dict[str, str], program: str, seeds: Seeds) -> str:
    """Return the label of a program that runs in the session."""
    try:
        session.start(program, problem["entry_point"], seeds.program)
        _check(session, problem, seeds.tests)
    except ProgramOver as over:
        return over.label
    except (DeadlinePassed, BrokenProblem, SandboxFailure):
        raise
    except MemoryError:  # the judge's own, over an answer
        return verdict.OUT_OF_MEMORY
    except BaseException as error:
        return session.label or verdict.failed(type(error).__name__, str(error))
    if session.label is not None:  # a test swallowed the end of the program
        return session.label
    return verdict.PASSED if time.monotonic() <= session.deadline else verdict.TIMED_OUT


def _check(session: Session, problem: dict[str, str], seed: str) -> None:
    """Run the problem's own check on the session's program."""

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        try:
            return session.call(arguments, keywords)
        except WireError as error:
            raise BrokenProblem(f"its test calls with more than plain data ({error})") from error

    random.seed(seed)  # some tests draw their inputs
    head, test = _code(problem["prompt"], problem["test"])
    namespace: dict[str, Any] = {}
    candidate.__name__ = candidate.__qualname__ = problem["entry_point"]
    try:
        exec(head, namespace)
        namespace[problem["entry_point"]] = candidate
        exec(test, namespace)
        check = namespace["check"]
    except Exception as error:
        if session.called:  # a test that calls while it is being defined
            raise
        raise BrokenProblem(f"its prompt or test does not run ({type(error).__name__}: {error})") from error
    check(candidate)


@lru_cache(maxsize=1024)
def _code(prompt: str, test: str) -> tuple[CodeType, CodeType]:
    """Return as program the prompt with its imports and helpers, as much of it as parses; and the test."""
    last = max(prompt.rfind("\ndef "), prompt.rfind("\nasync def "))
    head = ast.parse("")
    for text in (prompt, f"{prompt}\n    pass\n", prompt[: last + 1]):
        with contextlib.suppress(SyntaxError, ValueError):
            head = ast.parse(text)
            break
    try:
        return (
            compile(head, "<prompt>", "exec", dont_inherit=True),
            compile(ast.parse(test), "<test>", "exec", dont_inherit=True),
        )
    except (SyntaxError, ValueError) as error:
        raise BrokenProblem(f"its test is not valid Python ({error})") from error


@contextlib.contextmanager
def _alarm(deadline: float) -> Iterator[None]:
    def passed(_number: int, _frame: Any) -> None:
        raise DeadlinePassed

    signal.signal(signal.SIGALRM, passed)
    left_s = max(deadline - time.monotonic(), 1e-6)
    signal.setitimer(signal.ITIMER_PROF, left_s + _DEAF_S)
    signal.setitimer(signal.ITIMER_REAL, left_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(sandbox: Sandbox, job: dict[str, Any]) -> dict[str, Any]:
    try:
        seeds = Seeds(**job["seeds"])
        whole = job.get("whole", False)
        return judge_program(sandbox, job["problem"], job["completion"], job["timeout_s"], seeds, whole=whole)
    except SandboxFailure as failure:
        return {"error": str(failure)}
    except BrokenProblem as fault:
        return {"broken": str(fault)}
    except Exception as error:  # a fault of the judge is reported, never scored
        return {"error": f"{type(error).__name__}: {error}"}


def main(layers: list[str], number: int | None = None) -> None:
    """Serve jobs until stdin ends; with a number this process stays on one CPU with all that it starts.

    Judge, zygote and program take turns, and a message to another CPU wakes it up, which costs more than the
    message.
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
    for line in jobs:
        _write(answers, _answer(sandbox, json.loads(line)))
    sandbox.close()


def _private_streams() -> tuple[TextIO, TextIO]:
    # A test that prints must not print into the answers.
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

"""One program seen from the judge: its start, and calls of its function as messages."""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from spsbench.execution import verdict
from spsbench.execution.inside import frames, wire
from spsbench.execution.inside.frames import DeadlinePassed
from spsbench.execution.inside.wire import WireError
from spsbench.execution.sandbox import PATIENCE_S, Sandbox, SandboxFailure
from spsbench.execution.verdict import Seeds

_UNASKED = verdict.failed("ProtocolError", "an answer to no question")


class ProgramOver(BaseException):
    """The program cannot go on; ``label`` is the verdict. Not an ``Exception``: tests must not swallow it."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


class Raised(Exception):
    """The program raised something that the judge has no type for."""


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
            if wire.loads(frames.receive(self._replies, self.deadline)) == ["locked"]:
                return
        except (frames.PipeClosed, frames.TooLong, wire.WireError, DeadlinePassed):
            pass
        raise SandboxFailure("a process did not lock itself up")

    def start(self, program: str, entry_point: str, seed: str) -> None:
        """Run the program's text."""
        match self._exchange(wire.dumps([program, entry_point, seed])):
            case ["ready"]:
                return
            case ["raised", str(name), str(message)]:
                raise self._over(_label(name, message))
        raise self._over(verdict.failed("ProtocolError", "not an answer"))

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the program's function; mutable arguments are changed as the program changed them."""
        self.called = True
        if self.label is not None:
            raise ProgramOver(self.label)
        match self._exchange(self._request(arguments, keywords)):
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
        raise self._over(verdict.failed("ProtocolError", "not an answer"))

    def _request(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
        try:
            return wire.dumps([list(arguments), keywords], strict=True)
        except wire.ForeignData as error:
            raise self._over(verdict.failed("ProtocolError", str(error))) from None
        except wire.TooLarge as error:
            if not self._gave:
                raise
            # Tests that pass on what the program answered are not broken by it.
            raise self._over(verdict.failed("ProtocolError", str(error))) from None

    def _exchange(self, request: bytes) -> Any:
        question = _new_question()
        try:
            if frames.waiting(self._replies):
                raise self._over(_UNASKED)
            frames.send(self._requests, question + request, self.deadline)
            answer = frames.receive(self._replies, self.deadline)
            if answer[: len(question)] != question:
                raise self._over(_UNASKED)
            return wire.loads(answer[len(question) :])
        except frames.PipeClosed:
            raise self._over(verdict.ENDED) from None
        except frames.TooLong:
            raise self._over(verdict.failed("ProtocolError", "too long an answer")) from None
        except wire.WireError as error:
            raise self._over(verdict.failed("ProtocolError", str(error))) from None
        except DeadlinePassed:
            raise self._over(verdict.TIMED_OUT) from None

    def _over(self, label: str) -> ProgramOver:
        self.label = label
        return ProgramOver(label)


def _new_question() -> bytes:
    return os.urandom(frames.QUESTION_BYTES)


def _label(name: str, message: str) -> str:
    return verdict.OUT_OF_MEMORY if name == "MemoryError" else verdict.failed(name, message)


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
            found: Exception = kind(message)
            return found
    named: type[Raised] = type(name if name.isidentifier() else "Raised", (Raised,), {})
    return named(message)


# A test that computes in C with what a program answered is deaf to the alarm; this much later the
# kernel ends the judge's process by SIGPROF.
_DEAF_S = 2.0


class BrokenProblem(Exception):
    """The problem's own text cannot be judged with: its tests do not run, or need more than plain data."""


@dataclass(frozen=True)
class Outcome:
    """The label of a program and the seconds of CPU that its process used."""

    result: str
    cpu_s: float


def judge_program(
    sandbox: Sandbox, problem: dict[str, str], completion: str, timeout_s: float, seeds: Seeds
) -> Outcome:
    """Run ``check(candidate)`` of a problem on a program.

    Args:
        timeout_s: wall seconds for the program and its check together.
    """
    with _program(sandbox, timeout_s) as session:
        session.wait_for_lock()
        session.deadline = time.monotonic() + timeout_s
        try:
            with _alarm(session.deadline):
                result = _judged(session, problem, completion, seeds)
        except DeadlinePassed:
            result = verdict.TIMED_OUT
        ending = sandbox.end()
    return Outcome(result, ending.cpu_s)


@contextlib.contextmanager
def _program(sandbox: Sandbox, timeout_s: float) -> Iterator[Session]:
    descriptors = sandbox.begin(timeout_s + 1)
    try:
        yield Session(*descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _judged(session: Session, problem: dict[str, str], completion: str, seeds: Seeds) -> str:
    try:
        session.start(problem["prompt"] + completion, problem["entry_point"], seeds.program)
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
    random.seed(seed)  # some tests draw their inputs
    head, test = _code(problem["prompt"], problem["test"])
    namespace: dict[str, Any] = {}
    candidate = _proxy(session, problem)
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


def _proxy(session: Session, problem: dict[str, str]) -> Callable[..., Any]:
    def candidate(*arguments: Any, **keywords: Any) -> Any:
        try:
            return session.call(arguments, keywords)
        except WireError as error:
            raise BrokenProblem(f"its test calls with more than plain data ({error})") from error

    candidate.__name__ = candidate.__qualname__ = problem["entry_point"]
    return candidate


@lru_cache(maxsize=1024)
def _code(prompt: str, test: str) -> tuple[CodeType, CodeType]:
    try:
        head, tests = ast.parse(_runnable(prompt)), ast.parse(test)
        return (
            compile(head, "<prompt>", "exec", dont_inherit=True),
            compile(tests, "<test>", "exec", dont_inherit=True),
        )
    except (SyntaxError, ValueError) as error:
        raise BrokenProblem(f"its test is not valid Python ({error})") from error


def _runnable(prompt: str) -> str:
    """The prompt with its imports and helpers as a program, as much of it as parses."""
    last = max(prompt.rfind("\ndef "), prompt.rfind("\nasync def "))
    for text in (prompt, f"{prompt}\n    pass\n", prompt[: last + 1]):
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(text)
            return text
    return ""


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

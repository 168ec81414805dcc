"""Run a problem's tests, here, against a function that lives in the sandbox."""

from __future__ import annotations

import ast
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
from spsbench.execution.inside.frames import DeadlinePassed
from spsbench.execution.inside.wire import WireError
from spsbench.execution.sandbox import Sandbox, SandboxFailure
from spsbench.execution.session import ProgramOver, Session
from spsbench.execution.verdict import Seeds

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
        sandbox: where the program runs.
        problem: task_id, prompt, entry_point and test; its texts are trusted and run here.
        completion: what follows the prompt; not trusted.
        timeout_s: wall seconds for the program and its check together.
        seeds: of the random draws of either side.

    Raises:
        SandboxFailure: the sandbox is broken.
        BrokenProblem: the problem is.
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
        raise BrokenProblem(f"its test is no Python ({error})") from error


def _runnable(prompt: str) -> str:
    """The prompt with its imports and helpers as a program of its own, as much of it as parses."""
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

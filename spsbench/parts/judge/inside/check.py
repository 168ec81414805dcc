"""The process of a problem's tests, which calls the program by messages and tells a label.

Tests are code, and may be a stranger's: they run in the sandbox of the program that they judge, locked up
as it is. They run in a process apart from it, so that a program reaches no test: each call of its function
is a message, and the answer is plain data. The judge passes messages between both and runs nothing itself.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import marshal
import random
from types import CodeType
from typing import Any, NoReturn

from spsbench.parts.judge.inside import labels, streams, wire
from spsbench.parts.judge.inside.wire import WireError

MAX_JOB_BYTES = 1 << 28
"""Longest message between the judge and tests, which may hold much data."""

CALL, SAY = b"c", b"s"
"""How a message of this process begins: the program is to be called with the rest, or the rest is told."""


class ProgramOver(BaseException):
    """The program cannot go on; ``label`` is the verdict. Not an ``Exception``: tests must not swallow it."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


class Raised(Exception):
    """The program raised something that this process has no type for."""


class BrokenProblem(Exception):
    """The problem's own text cannot be judged with: its tests do not run, or need more than plain data."""


class Calls:
    """Calls of the program's function. After the first ``ProgramOver`` every call raises it again.

    Attributes:
        called: whether the program had a part in what happens.
    """

    def __init__(self, orders: int, answers: int) -> None:
        self._orders, self._answers = orders, answers
        self.label: str | None = None
        self.called = False
        self._gave = False  # whether the tests hold data that the program made

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
        match self._answer(request):
            case ["value", value, None]:
                self._gave = self._gave or not isinstance(value, int | float | str | None)
                return value
            case ["value", value, list(changed)]:
                self._gave = True
                for mine, theirs in zip(arguments, changed, strict=False):
                    _overwrite(mine, theirs)
                return value
            case ["raised", "MemoryError", str()]:
                raise self._over(labels.OUT_OF_MEMORY)
            case ["raised", str(name), str(message)]:
                raise _error(name, message)
        raise self._misbehaved("not an answer")

    def _answer(self, request: bytes) -> Any:
        wire.send(self._answers, CALL + request)
        try:
            return wire.loads(wire.receive(self._orders))
        except WireError as error:
            raise self._misbehaved(str(error)) from None

    def _misbehaved(self, message: str) -> ProgramOver:
        return self._over(labels.failed("ProtocolError", message))

    def _over(self, label: str) -> ProgramOver:
        self.label = label
        return ProgramOver(label)


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


def serve(orders: int, answers: int) -> NoReturn:
    """Check programs with one problem's tests until the judge ends this process.

    It says ``["locked"]``; before that it is sent nothing. The first request is ``["text", prompt, test]``,
    answered by ``["code", bytes]``, or ``["code", bytes]`` of an earlier process, answered by ``["ready"]``.
    Each further one is ``[entry_point, seed]`` when a program has started. Replies are ``["result", label]``,
    or at any time ``["broken", why]``; before each the program may be called any number of times.
    """
    wire.send(answers, wire.dumps(["locked"]))
    streams.to_nowhere()
    given, *parts = wire.loads(wire.receive(orders, most_bytes=MAX_JOB_BYTES))
    try:
        code = marshal.dumps(_head_and_test(*parts)) if given == "text" else parts[0]
        reply = ["code", code] if given == "text" else ["ready"]
    except BrokenProblem as fault:
        code, reply = b"", ["broken", str(fault)]
    _say(answers, reply)
    while True:
        entry_point, seed = wire.loads(wire.receive(orders))
        _say(answers, _verdict(Calls(orders, answers), entry_point, code, seed))


def _say(answers: int, reply: list[Any]) -> None:
    wire.send(answers, SAY + wire.dumps(reply))


def _verdict(program: Calls, entry_point: str, code: bytes, seed: str) -> list[str]:
    try:
        _run_check(program, entry_point, code, seed)
    except ProgramOver as over:
        return ["result", over.label]
    except BrokenProblem as fault:
        return ["broken", str(fault)]
    except MemoryError:  # of this process, over an answer
        return ["result", labels.OUT_OF_MEMORY]
    except BaseException as error:
        return ["result", program.label or labels.failed(type(error).__name__, _message(error))]
    return ["result", program.label or labels.PASSED]  # a label where a test swallowed the program's end


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a stranger's class may refuse to say anything
        return ""


def _run_check(program: Calls, entry_point: str, code: bytes, seed: str) -> None:

    def candidate(*arguments: Any, **keywords: Any) -> Any:
        try:
            return program.call(arguments, keywords)
        except WireError as error:
            raise BrokenProblem(f"its test calls with more than plain data ({error})") from error

    random.seed(seed)  # some tests draw their inputs
    head, test = marshal.loads(code)
    namespace: dict[str, Any] = {}
    candidate.__name__ = candidate.__qualname__ = entry_point
    try:
        exec(head, namespace)
        namespace[entry_point] = candidate
        exec(test, namespace)
        check = namespace["check"]
    except Exception as error:
        if program.called:  # a test that calls while it is being defined
            raise
        raise BrokenProblem(f"its prompt or test does not run ({_named(error)})") from error
    try:
        check(candidate)
    except (ImportError, OSError) as error:
        if program.called:
            raise
        why = f"its test needs what the sandbox does not have ({_named(error)})"
        raise BrokenProblem(why) from error


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error)}"


def _head_and_test(prompt: str, test: str) -> tuple[CodeType, CodeType]:
    """As much of the prompt, with its imports and helpers, as parses; and the test."""
    last = max(prompt.rfind("\ndef "), prompt.rfind("\nasync def "))
    head = ast.parse("")
    for text in (prompt, f"{prompt}\n    pass\n", prompt[: last + 1]):
        with contextlib.suppress(SyntaxError, ValueError):
            head = ast.parse(text)
            break
    try:
        return (
            compile(head, "<prompt>", "exec", dont_inherit=True),
            compile(test, "<test>", "exec", dont_inherit=True),
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BrokenProblem(f"its test is not valid Python ({_named(error)})") from error

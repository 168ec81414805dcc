"""One program seen from the judge: its start, and calls of its function as messages."""

from __future__ import annotations

import builtins
import contextlib
import os
import time
from typing import Any

from spsbench.execution import verdict
from spsbench.execution.inside import frames, wire
from spsbench.execution.inside.frames import DeadlinePassed
from spsbench.execution.sandbox import PATIENCE_S, SandboxFailure

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

    Args:
        requests: descriptor to write to.
        replies: descriptor to read from.

    Attributes:
        deadline: for everything, on ``time.monotonic``'s clock; at first for the locks alone.
        label: the verdict, once the program is over.
        called: whether a test has called the function.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self.deadline = time.monotonic() + PATIENCE_S
        self.label: str | None = None
        self.called = False
        self._gave = False  # whether the tests hold data that the program made

    def wait_for_lock(self) -> None:
        """Return when the program's process has locked itself up; nothing was sent to it before.

        Raises:
            SandboxFailure: it did not.
        """
        try:
            if wire.loads(frames.receive(self._replies, self.deadline)) == ["locked"]:
                return
        except (frames.PipeClosed, frames.TooLong, wire.WireError, DeadlinePassed):
            pass
        raise SandboxFailure("a process did not lock itself up")

    def start(self, program: str, entry_point: str, seed: str) -> None:
        """Run the program's text.

        Raises:
            ProgramOver: the program raised, ended, or was too slow.
        """
        match self._exchange(wire.dumps([program, entry_point, seed])):
            case ["ready"]:
                return
            case ["raised", str(name), str(message)]:
                raise self._over(_label(name, message))
        raise self._over(verdict.failed("ProtocolError", "not an answer"))

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the program's function; mutable arguments are changed as the program changed them.

        Raises:
            ProgramOver: no answer, or one that is not plain data.
            Exception: what the function raised, as the built-in type of that name.
            wire.WireError: the test's arguments are not plain data.
        """
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

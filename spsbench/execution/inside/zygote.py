"""The warm interpreter: locked up itself, it forks one process for each program.

It speaks with the judge over a socket that no program inherits. ``run`` comes with the two pipes of
the program and a null device that is its alone, flags and all; ``end`` kills what runs and is answered
when it is dead, with its status and CPU time.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from spsbench.execution.inside import kernel, landlock, limits, namespaces, program
from spsbench.execution.inside.locks import Locks

# What programs like to import; the rest of the standard library is made of what was read when asked for.
_WARM = """
    abc array bisect cmath collections collections.abc contextlib copy datetime decimal enum fractions
    functools heapq io itertools json math numbers operator random re statistics string time types typing
"""
_REQUESTS, _REPLIES = 3, 4


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


def serve(control: socket.socket, settings: dict[str, Any]) -> None:
    """Lock this process up, say so, and serve until the judge hangs up.

    Args:
        settings: ``layers``, ``packages`` (name to folder), ``memory_bytes``.
    """
    try:
        hello = _lock_up(settings)
        locks = Locks(settings["layers"], settings["memory_bytes"])
    except OSError as error:
        hello = {"error": f"{type(error).__name__}: {error}"}
    _say(control, hello)
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy the pages of all this
    while "error" not in hello:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 3)
        if not data:
            return
        job = json.loads(data)
        child = os.fork()
        if child == 0:
            _become(locks, job["cpu_s"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        asked = control.recv(16)
        os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        if not asked:
            return
        _say(control, {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime})


def _lock_up(settings: dict[str, Any]) -> dict[str, Any]:
    for name in _WARM.split():
        importlib.import_module(name)
    sys.meta_path += [_OnePackage(name, folder) for name, folder in settings["packages"].items()]
    limits.read_library(settings["packages"].values())
    if "namespaces" in settings["layers"]:
        namespaces.enter()
    uid = namespaces.lower_identity()
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.no_new_privileges()
    version = landlock.abi() if "landlock" in settings["layers"] else 0
    if "landlock" in settings["layers"]:
        landlock.confine()
    return {"uid": uid, "landlock_abi": version}


def _become(locks: Locks, cpu_s: int, descriptors: list[int]) -> None:
    """Turn this fork into the program's process; it never returns."""
    try:
        locks.separate()
        requests, replies, nothing = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in descriptors)
        for descriptor, wanted in zip((nothing,) * 3 + (requests, replies), range(5), strict=True):
            os.dup2(descriptor, wanted)
        os.closerange(_REPLIES + 1, 1024)
        if sys.platform == "linux":
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        locks.put_on(cpu_s)
        program.run(_REQUESTS, _REPLIES)
    except BaseException:
        os._exit(1)


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")

"""A program that tries to get out, run before any other: a layer that is there may still not hold."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path

from spsbench.execution import verdict
from spsbench.execution.seeds import Seeds, new_secret
from spsbench.execution.worker_process import ProblemFailure, WorkerFailure, WorkerProcess

_TIMEOUT_S = 10.0

_PROGRAM = """
import mmap, os, socket

def works(attempt):
    try:
        attempt()
        return True
    except BaseException:
        return False

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def canary(secret, fresh, port):
    attempts = {
        "read a file": lambda: open(secret).read(),
        "make a file": lambda: open(fresh, "w"),
        "open a connection": lambda: socket.create_connection(("127.0.0.1", port), 1),
        "open a socket": lambda: socket.socket(socket.AF_UNIX),
        "fork": fork,
        "execute": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "signal its parent": lambda: os.kill(os.getppid(), 0),
        "take 2 GiB": lambda: mmap.mmap(-1, 2 << 30),
    }
    return [name for name, attempt in attempts.items() if works(attempt)]

def lazy():
    import colorsys, hashlib
    return hashlib.sha256(b"").hexdigest()[:4] + str(colorsys.ONE_THIRD)[:3]
"""
_TEST = """
def check(candidate):
    leaks = candidate(*{arguments})
    assert leaks == [], "a program could " + ", ".join(leaks)
"""
_LAZY_TEST = """
def check(candidate):
    assert candidate() == "e3b00.3", "the standard library cannot be read"
"""
_LYING_TEST = """
def check(candidate):
    assert candidate() == "this"
"""


def holds(layers: Collection[str]) -> str | None:
    """Whether the canary stays in and right and wrong programs are told apart: None, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o777)  # whoever the program runs as: only the sandbox is to stop it
        secret, fresh = Path(folder) / "secret", Path(folder) / "fresh"
        secret.write_text("secret", encoding="ascii")
        arguments = json.dumps([str(secret), str(fresh), server.getsockname()[1]])
        fault = _ask(layers, [("canary", _TEST.format(arguments=arguments), True), *_ORDINARY])
        return fault or ("a program made a file" if fresh.exists() else None)


def works(layers: Collection[str]) -> str | None:
    """Whether right and wrong programs are told apart; nothing about what a program could do."""
    return _ask(layers, _ORDINARY)


_ORDINARY = [("lazy", _LAZY_TEST, True), ("lazy", _LYING_TEST, False)]


def _ask(layers: Collection[str], questions: list[tuple[str, str, bool]]) -> str | None:
    try:
        worker = WorkerProcess(layers)
    except WorkerFailure as failure:
        return str(failure)
    try:
        for entry_point, test, right in questions:
            problem = {"task_id": "canary", "prompt": "", "entry_point": entry_point, "test": test}
            job = {"problem": problem, "completion": _PROGRAM, "timeout_s": _TIMEOUT_S}
            seeds = Seeds.of(new_secret(), "canary").message()
            result = worker.ask({**job, "seeds": seeds})["result"]
            if (result == verdict.PASSED) is not right:
                return str(result).removeprefix("failed: AssertionError: ")
    except (WorkerFailure, ProblemFailure) as failure:
        return str(failure)
    finally:
        worker.close()
    return None

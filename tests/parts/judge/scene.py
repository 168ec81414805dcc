"""What stands around a sandbox while hostile programs run in it, and whether it was touched.

Files, sockets and processes that any user may read, write, reach or signal where permissions alone
decide; so that only the sandbox can stop a program. Everything is looked at from outside.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from spsbench.parts.judge.sandbox import mark

NOBODY = 65534


def processes(token: str) -> set[int]:
    """Process ids whose command line ends with ``token``; the dead that nobody waited for do not count."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if token.encode() in words:
                found.add(int(entry.name))
    return found


class Scene:
    """Set up with ``with``; ``facts`` are told to the programs, ``token`` is not."""

    def __enter__(self) -> Scene:
        self.token, self.name = secrets.token_hex(8), secrets.token_hex(6)
        self.folder = Path(tempfile.mkdtemp(prefix="scene"))
        self.folder.chmod(0o777)
        self.files = [self._file("mine", os.geteuid())]
        if os.geteuid() == 0:
            self.files.append(self._file("nobodys", NOBODY))
        self._state = self._files_now()
        self._sockets()
        self._users = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]
        self.sentinels = [self._sentinel(user) for user in self._users]
        self._expected: set[int] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        for sentinel in self.sentinels:
            sentinel.kill()
            sentinel.wait()
        for server in self.servers.values():
            server.close()
        shutil.rmtree(self.folder)

    def watch(self, judge_pid: int) -> None:
        """Take the sandbox of this judge, with no program or test in it, as what is there to be."""
        self.watched, self._mark = judge_pid, mark(judge_pid)
        self._expected = processes(self._mark)

    def harm(self) -> list[str]:
        """What was touched since the last look."""
        found = [f"{name} was reached" for name, server in self.servers.items() if self._reached(server)]
        for index, user in enumerate(self._users):
            if self.sentinels[index].poll() is not None:
                found.append("a sentinel is dead")
                self.sentinels[index] = self._sentinel(user)
        if self._files_now() != self._state:
            found.append("files changed")
            self._restore()
        left = processes(self._mark) - (self._expected or set())
        if len(left) > 1:  # the process of the last problem's tests stays for its next program
            found.append("processes are left")
            for pid in left:
                os.kill(pid, 9)
        shared = [path for path in (Path("/dev/shm"), Path("/tmp")) if (path / self.name).exists()]
        for path in shared:
            found.append(f"a file in {path}")
            (path / self.name).unlink()
        return found

    def _file(self, name: str, owner: int) -> Path:
        path = self.folder / name
        path.write_text(f"token {self.token}", encoding="ascii")
        if os.geteuid() == 0:
            os.chown(path, owner, owner)
        path.chmod(0o666)
        return path

    def _files_now(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.name not in ("unix",):
                facts = path.lstat()
                text = path.read_bytes() if path.is_file() and facts.st_size < 1000 else b""
                found[path.name] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, text, os.listxattr(path))
        return found

    def _restore(self) -> None:
        for path in self.folder.iterdir():
            if path.name != "unix":
                path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
        self.files = [self._file("mine", os.geteuid())]
        if os.geteuid() == 0:
            self.files.append(self._file("nobodys", NOBODY))
        self._state = self._files_now()

    def _sockets(self) -> None:
        self.servers = {
            "tcp": socket.create_server(("127.0.0.1", 0)),
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "unix": socket.socket(socket.AF_UNIX),
            "abstract": socket.socket(socket.AF_UNIX),
        }
        self.servers["udp"].bind(("127.0.0.1", 0))
        self.servers["unix"].bind(str(self.folder / "unix"))
        (self.folder / "unix").chmod(0o777)
        self.servers["abstract"].bind(f"\0{self.name}")
        for name in ("unix", "abstract"):
            self.servers[name].listen()
        for server in self.servers.values():
            server.setblocking(False)

    def _reached(self, server: socket.socket) -> bool:
        try:
            if server.type == socket.SOCK_DGRAM:
                server.recv(100)
            else:
                server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def _sentinel(self, user: int) -> subprocess.Popen[bytes]:
        given: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
        # By its own path: folders of the PATH may be closed to another user.
        sleep = Path(shutil.which("sleep") or "sleep").resolve()
        return subprocess.Popen([sleep, "600"], **given)

    @property
    def facts(self) -> dict[str, Any]:
        """What an attack may know."""
        return {
            "folder": str(self.folder),
            "files": [str(path) for path in self.files],
            "tcp": self.servers["tcp"].getsockname()[1],
            "udp": self.servers["udp"].getsockname()[1],
            "unix": str(self.folder / "unix"),
            "abstract": self.name,
            "sentinels": [sentinel.pid for sentinel in self.sentinels],
            "fresh": self.name,
        }

"""A hub on this machine that the real client libraries talk to, with faults by a switch.

It answers as huggingface.co does where spsbench and its libraries ask: repositories with sizes and revisions,
files with redirects to another host, ETag, ranges and ``X-Repo-Commit``, gated, private and missing ones.

    with Hub(folder) as hub:          # folder/models/org/name, folder/datasets/org/name
        hub.break_down("status", 503)
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from spsbench.models.fetch.cache import TransferWatcher

Kind = Literal["status", "web page", "cut", "stall", "drip", "no commit"]
LARGE = (".safetensors", ".bin", ".parquet", ".gguf")
"""Files that come from another host, under the hash of their content."""


@dataclass
class Fault:
    """What goes wrong with requests whose path matches, ``times`` often (None: always).

    ``value``: the status, of ``cut`` and ``stall`` the bytes before it, of ``drip`` the bytes a second.
    """

    kind: Kind
    value: int = 0
    where: str = ""
    times: int | None = None


@dataclass
class Repository:
    """A folder and what its owner set; a ``brief`` one is described by the names of its files alone, as some
    mirrors do."""

    folder: Path
    gated: bool = False
    private: bool = False
    lost: tuple[str, ...] = ()
    brief: bool = False
    pinned: str | None = None

    @property
    def commit(self) -> str:
        """What a task's file pins, where a test says so."""
        return (
            self.pinned
            or hashlib.sha1("".join(f"{p.name}{sha256(p)}" for p in self.files()).encode()).hexdigest()
        )

    def files(self) -> list[Path]:
        return sorted(p for p in self.folder.rglob("*") if p.is_file() and p.name not in self.lost)


def sha256(path: Path) -> str:
    return _sha256(path, path.stat().st_mtime_ns)


@cache
def _sha256(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


TOKEN = "hf_good"


@dataclass
class Hub:
    """The server; ``requests`` that came are ``GET /path``, ``sent`` the bytes of files by name."""

    root: Path
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Hub:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients go as they like
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, name: str, **settings: Any) -> None:
        """Make a repository gated, private or brief, lose some of its files, or pin its commit."""
        self.settings[name] = settings

    def break_down(self, kind: Kind, value: int = 0, where: str = "", times: int | None = None) -> None:
        self.faults.append(Fault(kind, value, where, times))

    def mend(self) -> None:
        self.faults.clear()
        self.requests.clear()
        self.sent = {}  # what an answer that was broken off still sends is counted in the former one

    def repository(self, kind: str, name: str) -> Repository | None:
        folder = self.root / kind / name
        return Repository(folder, **self.settings.get(name, {})) if folder.is_dir() else None

    def fault(self, path: str) -> Fault | None:
        found = next((f for f in self.faults if f.times != 0 and re.search(f.where, path)), None)
        if found is not None and found.times is not None:
            found.times -= 1
        return found


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        self.fault = self.hub.fault(path)
        if self.fault is not None and self.fault.kind == "status":
            self._answer(self.fault.value, {"error": "planted"})
        elif self.fault is not None and self.fault.kind == "web page":
            self._answer(200, b"<html>Log in to the network</html>", {"Content-Type": "text/html"})
        elif path == "/":
            self._answer(200, b"hub")
        elif found := re.fullmatch(r"/content/(models|datasets)/([^/]+/[^/]+)/(.+)", path):
            repository = self.hub.repository(found[1], found[2])
            assert repository is not None
            self._send(repository.folder / found[3])
        elif found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/(.+?))?", path):
            self._about(found[1], found[2], found[3], found[4] or "main")
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/(.+)", path):
            self._file("datasets" if found[1] else "models", found[2], found[3])
        else:
            self._answer(404, {"error": "no such page"})

    def _readable(self, kind: str, name: str) -> Repository | None:
        """The repository, unless it is missing or hidden; then that has been answered."""
        repository, known = self.hub.repository(kind, name), self._token() == TOKEN
        if repository is not None and (known or not repository.private):
            return repository
        self._refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        return None

    def _about(self, kind: str, name: str, part: str | None, revision: str) -> None:
        repository = self._readable(kind, name)
        if repository is None:
            return
        if part == "tree" and "/" in revision.removeprefix("refs/convert/"):
            self._refuse(404, "EntryNotFound", "no such folder")
            return
        if revision not in ("main", "refs/convert/parquet", repository.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        entries = []
        for path in repository.files():
            size, content = path.stat().st_size, sha256(path)
            large = {"lfs": {"oid": content, "sha256": content, "size": size, "pointerSize": 134}}
            named = str(path.relative_to(repository.folder))
            entry = {"type": "file", "path": named, "rfilename": named, "size": size}
            entry |= {"oid": content[:40], "blobId": content[:40]}
            entries.append(entry | (large if named.endswith(LARGE) else {}))
        if repository.brief and part != "tree":
            entries = [{"rfilename": entry["rfilename"]} for entry in entries]
        about = {"id": name, "modelId": name, "sha": repository.commit, "siblings": entries, "tags": []}
        self._answer(200, entries if part == "tree" else about | {"downloads": 0, "likes": 0})

    def _file(self, kind: str, name: str, rest: str) -> None:
        repository = self._readable(kind, name)
        if repository is None:
            return
        if repository.gated and self._token() != TOKEN:
            self._refuse(401, "GatedRepo", f"Access to {name} is restricted.")
            return
        known = ("main", "refs/convert/parquet", repository.commit)
        revision = next((each for each in known if rest.startswith(f"{each}/")), None)
        if revision is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {rest.split('/')[0]}")
            return
        path = repository.folder / rest.removeprefix(f"{revision}/")
        commit = {} if self.fault and self.fault.kind == "no commit" else {"X-Repo-Commit": repository.commit}
        if path not in repository.files():
            self._refuse(404, "EntryNotFound", "Entry not found", commit)
            return
        size, content = str(path.stat().st_size), sha256(path)
        if not path.name.endswith(LARGE):
            self._send(path, commit | {"ETag": f'"{content[:40]}"'})
            return
        linked = {"X-Linked-Etag": f'"{content}"', "X-Linked-Size": size}
        inside = path.relative_to(self.hub.root)
        where = {"Location": f"http://localhost:{self.hub.port}/content/{inside}"}
        self._answer(302, b"", commit | linked | where)

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _refuse(self, status: int, code: str, message: str, more: dict[str, str] | None = None) -> None:
        self._answer(
            status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message} | (more or {})
        )

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._begin(status, len(content), {"Content-Type": "application/json"} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(length)} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, path: Path, headers: dict[str, str] | None = None) -> None:
        """A file or the rest of it, as it comes over a line that may break."""
        size, content, sent = path.stat().st_size, path.read_bytes(), self.hub.sent
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        ranged = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if asked else {}
        self._begin(206 if asked else 200, size - start, ranged | (headers or {}))
        if self.command == "HEAD":
            return
        fault = self.fault
        end = start + fault.value if fault and fault.kind in ("cut", "stall") else size
        for place in range(start, min(end, size), 1 << 14):
            block = content[place : min(place + (1 << 14), end)]
            self.wfile.write(block)
            sent[path.name] = sent.get(path.name, 0) + len(block)
            if fault and fault.kind == "drip":
                time.sleep(len(block) / fault.value)
        if fault and fault.kind == "stall":
            time.sleep(60)
        if end < size:
            self.close_connection = True


FAULTS: dict[str, tuple[Kind, int, str, str]] = {
    "429": ("status", 429, "127.0.0.1 answered 429, too many requests.", "HF_TOKEN"),
    "503": ("status", 503, "127.0.0.1 answered 503, a server error.", "Try again later"),
    "captive portal": ("web page", 0, "127.0.0.1 answered with a web page", "Log in to the network"),
    "mirror": ("no commit", 0, "127.0.0.1 answers without X-Repo-Commit", "HF_ENDPOINT"),
}
"""Of the hub: kind and value of the fault, how its sentence begins, and what its remedy names."""


class Notes(TransferWatcher):
    """What people would see."""

    def __init__(self, breaks_off_at: int | None = None) -> None:
        self.lines: list[str] = []
        self.come = 0
        self._breaks_off_at = breaks_off_at

    def said(self, message: str) -> None:
        self.lines.append(message)

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        self.lines.append(what)
        self.total, self.come = total, done

        def came(count: int) -> None:
            self.come += count
            if self._breaks_off_at is not None and self.come >= self._breaks_off_at:
                raise KeyboardInterrupt

        yield came


@contextmanager
def connected(hub: Hub, home: Path, patch: Any) -> Iterator[Callable[[], None]]:
    """This process's client libraries talk to the hub, with an empty cache in ``home``.

    What is entered forgets what this process knows of the hub, as a new one would.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from transformers.utils import hub as theirs

    from spsbench.models import downloads, hf_errors

    def forget() -> None:
        huggingface_hub.close_session()
        theirs._hf_api = None  # made once, for the hub that it was first used with
        hf_errors.forget()
        downloads.forget()

    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    forget()
    try:
        yield forget
    finally:
        forget()


def environment(hub: Hub, home: Path) -> dict[str, str]:
    """Variables by which another process's libraries talk to the hub."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost"}

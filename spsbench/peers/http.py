"""JSON over HTTP to an external server, and server-sent events from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from spsbench.config.addresses import withheld
from spsbench.fetch.http import Bounded
from spsbench.peers.protocol import PeerError, PeerGone, ProtocolError, loaded, shortened
from spsbench.peers.worker import MOST_BYTES

KEY = "SPSBENCH_API_KEY"
"""Environment variable with the key of a server that asks for one; it is sent and never written down."""

_CONNECT_S = 10.0
_ABSENT = (404, 405, 501)


class Http:
    """A server by its root.

    Several threads may ask at once. Every request has its own connection: of requests over connections
    that each thread kept, llama-server (build 11434) closed one in ten early.

    Args:
        answer_s: how long one answer may take, to its last byte, in seconds.
    """

    def __init__(self, root: str, answer_s: float) -> None:
        self.root, self._answer_s = root, answer_s
        self._login, self._query = withheld(root)
        key = os.environ.get(KEY)
        self._headers = {"Connection": "close", "Accept-Encoding": "identity"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )

    def get(self, path: str) -> Any:
        """What JSON is there."""
        with self._asked("GET", path) as response:
            return self._json(response, path)

    def find(self, path: str) -> dict[str, Any] | None:
        """The JSON object that is there, or None for anything else that a server may answer."""
        with self._asked("GET", path) as response:
            if response.status_code in (401, 403):
                self._require_ok(response, path)
            try:
                found = loaded(response.content) if _is_ok(response) else None
            except ProtocolError:
                return None
            return found if isinstance(found, dict) else None

    def text(self, path: str) -> str | None:
        """The text that is there; None where there is none."""
        with self._asked("GET", path) as response:
            return response.content.decode(errors="replace") if _is_ok(response) else None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that answers a request."""
        with self._asked("POST", path, body) as response:
            return self._object(self._json(response, path), path)

    def accepts(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The object that answers a request, or None where the server finds fault with the request."""
        with self._asked("POST", path, body) as response:
            if response.status_code in (400, 422):
                return None
            return self._object(self._json(response, path), path)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Objects of a stream, each as it arrives."""
        with self._asked("POST", path, body, most=math.inf) as response:
            self._require_ok(response, path)
            for line in _lines(response, path):
                if not line.startswith(b"data:"):
                    continue  # a comment that keeps the connection alive, or the name of an event
                text = line[5:].strip()
                if text == b"[DONE]":
                    return
                try:
                    event = self._object(loaded(text), path)
                except ProtocolError as error:
                    raise PeerError(f"{path} streams {error}") from None
                if "error" in event:
                    raise PeerError(f"{path} says {shortened(json.dumps(event['error']), 200)}")
                yield event

    @contextmanager
    def _asked(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, most: float = MOST_BYTES
    ) -> Iterator[requests.Response]:
        """The response, whose errors are ours, also while it is read."""
        url = self.root + path
        limits = (min(_CONNECT_S, self._answer_s), self._answer_s)
        late = PeerError(f"no answer from {url} within {self._answer_s:g} s")
        long = PeerError(f"{url} answers more than {MOST_BYTES >> 20} MB")
        try:
            with requests.Session() as session:
                for scheme in ("http://", "https://"):
                    session.mount(scheme, Bounded(self._answer_s, most, late, long))
                # A redirection would turn a POST into a GET, and lead the key elsewhere.
                given: dict[str, Any] = {"stream": True, "allow_redirects": False, "headers": self._headers}
                given |= {"params": self._query, "auth": self._login}
                with session.request(method, url, json=body, timeout=limits, **given) as response:
                    if "Content-Encoding" in response.headers:  # a small answer may be a large one then
                        raise PeerError(f"{url} compresses its answers, which was not asked for")
                    yield response
        except (requests.RequestException, HTTPError) as error:
            raise self._explained(error, url) from error

    def _explained(self, error: Exception, url: str) -> PeerError:
        """Why there is no response. A stream that falls silent is a ``ConnectionError`` for requests."""
        cause = error if isinstance(error, HTTPError) else error.args[0] if error.args else None
        if isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError):
            return PeerError(f"no answer from {url} within {self._answer_s:g} s")
        if isinstance(cause, MaxRetryError):
            return PeerGone(f"no server answers at {self.root}")
        if isinstance(error, (requests.ConnectionError, HTTPError)):
            return PeerError(f"{url} closed the connection early")
        return PeerError(f"{url} cannot be asked ({type(error).__name__})")

    def _require_ok(self, response: requests.Response, path: str) -> None:
        status = response.status_code
        if _is_ok(response):
            return
        if status in (401, 403):
            raise PeerError(f"{self.root}{path} answers {status}; set its key in {KEY}")
        if response.is_redirect:
            to = shortened(response.headers["Location"])
            raise PeerError(f"{self.root}{path} answers {status}, to be found at {to}: give that URL")
        if status in _ABSENT:
            raise PeerError(
                f"{self.root}{path} answers {status}; give the URL of the server's root or of /v1"
            )
        raise PeerError(f"{self.root}{path} answers {status}: {shortened(_reason(response))}")

    def _json(self, response: requests.Response, path: str) -> Any:
        self._require_ok(response, path)
        try:
            return loaded(response.content)
        except ProtocolError as error:
            kind = response.headers.get("Content-Type", "nothing")
            raise PeerError(f"{self.root}{path} answers {kind}, {error}") from None

    def _object(self, found: Any, path: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise PeerError(
                f"{self.root}{path} answers something other than an object: {shortened(json.dumps(found))}"
            )
        return found


def _is_ok(response: requests.Response) -> bool:
    return 200 <= int(response.status_code) < 300


def _lines(response: requests.Response, path: str) -> Iterator[bytes]:
    held = b""
    while part := response.raw.read1(1 << 16):
        *lines, held = (held + part).split(b"\n")
        yield from lines
        if len(held) > MOST_BYTES:
            raise PeerError(f"{path} streams a line of more than {MOST_BYTES >> 20} MB")
    yield held


def _reason(response: requests.Response) -> str:
    """What the server says of its error, or the beginning of its page."""
    try:
        found = loaded(response.content)
    except ProtocolError:
        return str(response.content[:1000], errors="replace")
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)

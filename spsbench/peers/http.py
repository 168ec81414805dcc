"""JSON over HTTP to an external server, and server-sent events from it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from urllib3.exceptions import MaxRetryError, ReadTimeoutError

from spsbench.fetch.addresses import withheld
from spsbench.peers.peer import PeerError, PeerGone
from spsbench.peers.protocol import shortened

KEY = "SPSBENCH_API_KEY"
"""Environment variable with the key of a server that asks for one; it is sent and never written down."""

_CONNECT_S = 10.0
_ABSENT = (404, 405, 501)


class Http:
    """A server by its root.

    Several threads may ask at once. Every request has its own connection: of requests over connections
    that each thread kept, llama-server (build 11434) closed one in ten early.

    Args:
        root: e.g. ``http://127.0.0.1:8000``, without a slash at the end.
        answer_s: how long one answer may take, in seconds.
    """

    def __init__(self, root: str, answer_s: float) -> None:
        self.root, self._answer_s = root, answer_s
        self._login, self._query = withheld(root)
        key = os.environ.get(KEY)
        self._headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> Any:
        """What JSON is there.

        Raises:
            PeerError: none, or the server refuses.
            PeerGone: no server answers.
        """
        with self._asked("GET", path) as response:
            self._require_ok(response, path)
            return self._json(response, path)

    def find(self, path: str) -> dict[str, Any] | None:
        """The JSON object that is there, or None for anything else that a server may answer.

        Raises:
            PeerError: the server wants a key.
            PeerGone: no server answers.
        """
        with self._asked("GET", path) as response:
            if response.status_code in (401, 403):
                self._require_ok(response, path)
            try:
                found = response.json() if response.ok else None
            except ValueError:
                return None
            return found if isinstance(found, dict) else None

    def text(self, path: str) -> str | None:
        """The text that is there; None where there is none.

        Raises:
            PeerError: the server does not answer.
        """
        with self._asked("GET", path) as response:
            return response.text if response.ok else None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that answers a request.

        Raises:
            PeerError: the server refuses, or answers no JSON object, or too late.
            PeerGone: no server answers.
        """
        with self._asked("POST", path, body) as response:
            self._require_ok(response, path)
            return self._object(self._json(response, path), path)

    def accepts(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The object that answers a request, or None where the server finds fault with the request.

        Raises:
            PeerError, PeerGone: as ``post``, for any other reason.
        """
        with self._asked("POST", path, body) as response:
            if response.status_code in (400, 422):
                return None
            self._require_ok(response, path)
            return self._object(self._json(response, path), path)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Objects of a stream, each as it arrives.

        Raises:
            PeerError, PeerGone: as ``post``.
        """
        deadline = time.monotonic() + self._answer_s
        with self._asked("POST", path, body, stream=True) as response:
            self._require_ok(response, path)
            for line in _lines(response):
                if time.monotonic() > deadline:
                    raise PeerError(f"no end of {path} within {self._answer_s:g} s")
                if not line.startswith(b"data:"):
                    continue  # a comment that keeps the connection alive, or the name of an event
                text = line[5:].strip()
                if text == b"[DONE]":
                    return
                event = self._object(_parsed(text, path), path)
                if "error" in event:
                    raise PeerError(f"{path} says {shortened(json.dumps(event['error']), 200)}")
                yield event

    @contextmanager
    def _asked(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, stream: bool = False
    ) -> Iterator[requests.Response]:
        """The response, whose errors are ours, also while it is read."""
        url = self.root + path
        limits = (min(_CONNECT_S, self._answer_s), self._answer_s)
        try:
            with requests.request(
                *(method, url),
                params=self._query,
                auth=self._login,
                json=body,
                timeout=limits,
                stream=stream,
                headers=self._headers,
            ) as response:
                yield response
        except requests.RequestException as error:
            raise self._explained(error, url) from error

    def _explained(self, error: requests.RequestException, url: str) -> PeerError:
        """Why there is no response. A stream that falls silent is a ``ConnectionError`` for requests."""
        cause = error.args[0] if error.args else None
        if isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError):
            return PeerError(f"no answer from {url} within {self._answer_s:g} s")
        if isinstance(cause, MaxRetryError):
            return PeerGone(f"no server answers at {self.root}")
        if isinstance(error, requests.ConnectionError):
            return PeerError(f"{url} closed the connection early")
        return PeerError(f"{url} cannot be asked ({type(error).__name__})")

    def _require_ok(self, response: requests.Response, path: str) -> None:
        status = response.status_code
        if response.ok:
            return
        if status in (401, 403):
            raise PeerError(f"{self.root}{path} answers {status}; set its key in {KEY}")
        if status in _ABSENT:
            raise PeerError(
                f"{self.root}{path} answers {status}; give the URL of the server's root or of /v1"
            )
        raise PeerError(f"{self.root}{path} answers {status}: {shortened(_reason(response))}")

    def _json(self, response: requests.Response, path: str) -> Any:
        try:
            return response.json()
        except ValueError:
            kind = response.headers.get("Content-Type", "nothing")
            raise PeerError(f"{self.root}{path} answers {kind}, not JSON") from None

    def _object(self, found: Any, path: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise PeerError(
                f"{self.root}{path} answers something other than an object: {shortened(json.dumps(found))}"
            )
        return found


def _parsed(text: bytes, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise PeerError(
            f"{path} streams something that is not JSON: {shortened(text.decode(errors='replace'))}"
        ) from None


def _lines(response: requests.Response) -> Iterator[bytes]:
    """Lines as they arrive: a chunk at a time, or a byte at a time of a server that sends no chunks."""
    lines: Iterator[bytes] = response.iter_lines(chunk_size=None if response.raw.chunked else 1)
    return lines


def _reason(response: requests.Response) -> str:
    """What the server says of its error, or the beginning of its page."""
    try:
        found = response.json()
    except ValueError:
        return str(response.text)
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)

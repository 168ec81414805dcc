"""Answers over HTTP that end: by a deadline for all of it, and after so many bytes."""

from __future__ import annotations

import io
import socket
import time
from functools import partial
from http.client import HTTPResponse
from typing import Any

from requests.adapters import HTTPAdapter


class Bounded(HTTPAdapter):  # type: ignore[misc]  # requests has no types
    """Ends an answer that takes too long or is too long, however little of it comes at a time.

    The timeouts of requests are for the wait between two bytes, and begin again with each.

    Args:
        most: bytes with all headers.
    """

    def __init__(
        self, within_s: float, most: float, late: Exception, long: Exception, max_retries: Any = 0
    ) -> None:
        super().__init__(max_retries=max_retries)
        ends = time.monotonic() + within_s
        self._response = partial(_Response, ends=ends, most=most, late=late, long=long)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """See ``HTTPAdapter``; also through a proxy."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": self._response})
        return pool


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **bounds: Any) -> None:
        own = {name: bounds.pop(name) for name in ("ends", "most", "late", "long")}
        super().__init__(sock, *args, **bounds)
        self.fp = io.BufferedReader(_Reader(sock, self.fp.detach(), **own))


class _Reader(io.RawIOBase):
    def __init__(
        self,
        sock: socket.socket,
        raw: io.RawIOBase,
        ends: float,
        most: float,
        late: Exception,
        long: Exception,
    ) -> None:
        self._sock, self._raw = sock, raw
        self._wait_s = sock.gettimeout()
        self._ends, self._left, self._late, self._long = ends, most, late, long

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise self._late
        self._sock.settimeout(left_s if self._wait_s is None else min(left_s, self._wait_s))
        try:
            count = self._raw.readinto(buffer) or 0
        except TimeoutError:
            if time.monotonic() < self._ends:
                raise
            raise self._late from None
        self._left -= count
        if self._left < 0:
            raise self._long
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()

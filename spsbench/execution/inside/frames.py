"""Messages over a pipe: four bytes of length, then as many bytes."""

from __future__ import annotations

import os
import select
import time

MAX_BYTES = 4 << 20
"""Longest message that is accepted from a program."""

_CHUNK_BYTES = 1 << 16


class PipeClosed(Exception):
    """The other side is gone."""


class TooLong(Exception):
    """A message announces more than ``MAX_BYTES``."""


class DeadlinePassed(BaseException):
    """The wall deadline is over. Not an ``Exception``, so that no test swallows it by accident."""


def send(descriptor: int, message: bytes, deadline: float | None = None) -> None:
    """Write one message.

    Args:
        descriptor: of a pipe; not blocking if there is a deadline.
        message: at most 4 GiB.
        deadline: on ``time.monotonic``'s clock; without one it may block for ever.

    Raises:
        PipeClosed: nobody reads.
        DeadlinePassed: not written in time.
    """
    left = memoryview(len(message).to_bytes(4, "big") + message)
    while left:
        _wait(descriptor, select.POLLOUT, deadline)
        try:
            left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise PipeClosed from None


def receive(descriptor: int, deadline: float | None = None) -> bytes:
    """Read one message.

    Raises:
        PipeClosed: the other side is gone, perhaps in the middle.
        TooLong: it announces more than ``MAX_BYTES``; none of it was read.
        DeadlinePassed: not there in time.
    """
    size = int.from_bytes(_exactly(descriptor, 4, deadline), "big")
    if size > MAX_BYTES:
        raise TooLong
    return _exactly(descriptor, size, deadline)


def _exactly(descriptor: int, size: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        _wait(descriptor, select.POLLIN, deadline)
        try:
            part = os.read(descriptor, min(size, _CHUNK_BYTES))
        except BlockingIOError:
            continue
        if not part:
            raise PipeClosed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    left_s = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, event)
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise DeadlinePassed

"""Messages over a pipe: four bytes of length, then as many bytes."""

from __future__ import annotations

import os
import select
import time

MAX_BYTES = 4 << 20
"""Longest message that is accepted from a program."""

QUESTION_BYTES = 8
"""Of a message to a program after the first, and of its answer, this many identify the question."""

_CHUNK_BYTES = 1 << 16


class PipeClosed(Exception):
    """The other side is gone."""


class TooLong(Exception):
    """A message announces more than ``MAX_BYTES``."""


class DeadlinePassed(BaseException):
    """The wall deadline is over. Not an ``Exception``, so that no test swallows it by accident."""


def send(descriptor: int, message: bytes, deadline: float | None = None) -> None:
    """Write one message."""
    left = memoryview(len(message).to_bytes(4, "big") + message)
    while left:
        try:
            left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT, deadline)
        except BrokenPipeError:
            raise PipeClosed from None


def receive(descriptor: int, deadline: float | None = None) -> bytes:
    """Read one message, in one go if it is there: each side waits for the other's before it sends again."""
    message = bytearray()
    wanted = 4
    while len(message) < wanted:
        message += _some(descriptor, deadline)
        if wanted == 4 <= len(message):
            size = int.from_bytes(message[:4], "big")
            if size > MAX_BYTES:
                raise TooLong
            wanted += size
    if len(message) > wanted:
        raise TooLong
    return bytes(message[4:])


def waiting(descriptor: int) -> bool:
    """Whether something was written that nobody has read yet."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _some(descriptor: int, deadline: float | None) -> bytes:
    while True:
        _wait(descriptor, select.POLLIN, deadline)
        try:
            part = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not part:
            raise PipeClosed
        return part


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    left_s = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, event)
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise DeadlinePassed

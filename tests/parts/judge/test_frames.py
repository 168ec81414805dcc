"""Messages over a pipe: whole or not at all, and no more than was announced."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from spsbench.parts.judge.inside import wire


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_532, 65_537, 1 << 20])
def test_a_message_comes_as_it_was_sent(pipe: tuple[int, int], size: int) -> None:
    message = bytes(i % 251 for i in range(size))
    sender = threading.Thread(target=wire.send, args=(pipe[1], message))
    sender.start()
    assert wire.receive(pipe[0], time.monotonic() + 20) == message
    sender.join()


def test_more_than_announced_is_refused(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], (3).to_bytes(4, "big") + b"abcd")
    with pytest.raises(wire.TooLong):
        wire.receive(pipe[0], time.monotonic() + 20)


def test_an_absurd_announcement_is_refused_at_once(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"\xff\xff\xff\xff")
    with pytest.raises(wire.TooLong):
        wire.receive(pipe[0], time.monotonic() + 20)


def test_half_a_message_waits_for_the_deadline(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], (10).to_bytes(4, "big") + b"half")
    with pytest.raises(wire.DeadlinePassed):
        wire.receive(pipe[0], time.monotonic() + 0.05)

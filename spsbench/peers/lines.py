"""Lines from a process that may never write one."""

from __future__ import annotations

import os
import select
import time

from spsbench.peers.protocol import shortened

MOST_BYTES = 8 << 20
"""Of one answer: far more than the longest text takes as token ids."""


_PART = 1 << 16


class NoLine(Exception):
    """There is no line; the text says why."""


class Lines:
    """A line to a process and a line from it, each time within a limit."""

    def __init__(self, asked: int, answers: int) -> None:
        os.set_blocking(asked, False)  # it may never read
        self._asked, self._answers = asked, answers

    def answer(self, line: str, limit_s: float) -> str:
        """What it answers to a line."""
        end = time.monotonic() + limit_s
        if self._ready(self._answers, select.POLLIN, 0.0) and os.read(self._answers, 1):
            raise NoLine("it wrote before it was asked")
        left = memoryview(line.encode())
        held = bytearray()
        while b"\n" not in held[-_PART:]:
            waits = (self._asked, select.POLLOUT) if left else (self._answers, select.POLLIN)
            if not self._ready(*waits, end - time.monotonic()):
                raise NoLine(f"no answer after {limit_s:g} s")
            if left:
                left = left[os.write(self._asked, left[:_PART]) :]
                continue
            part = os.read(self._answers, _PART)
            if not part:
                raise NoLine("it ended")
            held += part
            if len(held) > MOST_BYTES:
                raise NoLine(f"a line of more than {MOST_BYTES >> 20} MB")
        if not held.endswith(b"\n") or held.count(b"\n") > 1:
            first, _, _ = held.decode(errors="replace").partition("\n")
            raise NoLine(f"it wrote more than one line, the first {shortened(first)}")
        return held.decode(errors="replace")

    def _ready(self, descriptor: int, event: int, limit_s: float) -> bool:
        poll = select.poll()  # not select(), which knows no descriptor above 1023
        poll.register(descriptor, event)
        return bool(poll.poll(max(0.0, limit_s) * 1000))

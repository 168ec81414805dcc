"""Lines from a process that may never write one."""

from __future__ import annotations

import os
import select
import time

_MOST_BYTES = 64 << 20


class NoLine(Exception):
    """There is no line; ``ended`` says whether there will never be one."""

    def __init__(self, what: str, *, ended: bool) -> None:
        super().__init__(what)
        self.ended = ended


class Lines:
    """Reads a pipe line by line, each with a time limit.

    Args:
        descriptor: of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray()

    def next(self, limit_s: float) -> str:
        """The next line.

        Raises:
            NoLine: none came within the limit, or the pipe is closed.
        """
        end = time.monotonic() + limit_s
        while (at := self._held.find(b"\n")) < 0:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise NoLine(f"no answer after {limit_s:g} s", ended=False)
            part = os.read(self._descriptor, 1 << 16)
            if not part:
                raise NoLine("it ended", ended=True)
            self._held += part
            if len(self._held) > _MOST_BYTES:
                raise NoLine(f"a line of more than {_MOST_BYTES >> 20} MB", ended=False)
        line = self._held[:at].decode(errors="replace")
        del self._held[: at + 1]
        return line

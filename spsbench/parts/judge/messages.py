"""What a person is told about a program that was judged, and about a sandbox that does not hold."""

from __future__ import annotations

from spsbench.base import Message
from spsbench.parts.judge.inside.labels import TIMED_OUT

FILE_MADE = "a program made a file"


class TimedOutStarved(Message):
    """Of a program that did not get the CPU time that it may spend."""

    cpu_s: float
    wall_s: float

    def __str__(self) -> str:
        return f"{TIMED_OUT}: {self.cpu_s:.1f} s of CPU time in {self.wall_s:.0f} s"

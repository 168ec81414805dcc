"""Clocks and the stopwatch that divides a loop into its phases.

The hot path calls ``lap`` four times per loop, so nothing here does more than a subtraction. A device
that works asynchronously brings a clock of its own whose ``now`` first waits for the device.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol

Phase = Literal["draft", "verify", "sample", "other"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "sample", "other")


class Clock(Protocol):
    """Something that tells seconds from an arbitrary start; it never runs backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        ...


class SystemClock:
    """The machine's monotonic clock of the highest resolution."""

    __slots__ = ()

    now = staticmethod(time.perf_counter)


class FakeClock:
    """A clock for tests: every look at it moves it on by ``tick_s`` seconds."""

    def __init__(self, tick_s: float = 1.0) -> None:
        self._tick_s = tick_s
        self._looks = 0
        self._skipped_s = 0.0

    def now(self) -> float:
        """Seconds since the clock was made; moves the clock on by one tick."""
        seconds = self._looks * self._tick_s + self._skipped_s
        self._looks += 1
        return seconds

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass without a look at the clock."""
        self._skipped_s += seconds


class Stopwatch:
    """Divides the time since ``start`` into phases; each moment belongs to exactly one of them.

    Attributes:
        seconds: seconds per phase since ``start`` or the last ``take``.
    """

    __slots__ = ("_mark", "_now", "seconds")

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self.start()

    def start(self) -> None:
        """Zero the phases and measure from this moment on."""
        self.seconds = _zeros()
        self._mark = self._now()

    def lap(self, phase: Phase) -> None:
        """Book the time since the last lap (or ``start``) on ``phase``."""
        now = self._now()
        self.seconds[phase] += now - self._mark
        self._mark = now

    def skip(self) -> float:
        """Leave the time since the last lap out of every phase; returns how many seconds that were."""
        now = self._now()
        skipped_s, self._mark = now - self._mark, now
        return skipped_s

    def take(self) -> dict[str, float]:
        """The phases' seconds up to the last lap, e.g. those of a loop; the next loop begins at that lap."""
        seconds, self.seconds = self.seconds, _zeros()
        return seconds


def _zeros() -> dict[str, float]:
    return {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.0}

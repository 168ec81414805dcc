"""Clocks and the stopwatch that divides a loop into its phases.

The hot path calls ``lap`` four times per loop, so nothing here does more than a subtraction. A device
that works asynchronously brings its own clock whose ``now`` first waits for the device.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol, runtime_checkable

import torch

Phase = Literal["draft", "verify", "sample", "other"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "sample", "other")


class Clock(Protocol):
    """A source of seconds since an arbitrary start; it never runs backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        ...


@runtime_checkable
class CommunicatingClock(Clock, Protocol):
    """A clock that also knows how long this process was within collectives, where a model is split."""

    def communicated(self) -> float:
        """Seconds within collectives since it was last asked."""
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


def device_now(device: torch.device, clock: Clock | None = None) -> float:
    """Seconds of the clock, the machine's unless given, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() if clock is None else clock.now()


class Stopwatch:
    """Divides the time since ``start`` into phases; each moment belongs to exactly one of them.

    Under a ``CommunicatingClock`` there is a phase more, ``comm``, which is taken out of the others.

    Attributes:
        seconds: seconds per phase since ``start`` or the last ``take``.
    """

    __slots__ = ("_communicated", "_mark_s", "_now", "seconds")

    _mark_s: float

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._communicated = clock.communicated if isinstance(clock, CommunicatingClock) else None
        self.start()

    def start(self) -> None:
        """Zero the phases and measure from this moment on."""
        self.seconds = self._zeros()
        self._from(self._now())

    def lap(self, phase: Phase) -> None:
        """Book the time since the last lap (or ``start``) on ``phase``."""
        now = self._now()
        self.seconds[phase] += now - self._mark_s
        self._mark_s = now
        if self._communicated is not None:
            comm_s = self._communicated()
            self.seconds[phase] -= comm_s
            self.seconds["comm"] += comm_s

    def skip(self) -> float:
        """Leave the time since the last lap out of every phase; returns how many seconds that were."""
        now = self._now()
        skipped_s = now - self._mark_s
        self._from(now)
        return skipped_s

    def _from(self, now: float) -> None:
        """Measure from a moment of the clock on; what was communicated until then is in no phase."""
        self._mark_s = now
        if self._communicated is not None:
            self._communicated()

    def take(self) -> dict[str, float]:
        """The phases' seconds up to the last lap, e.g. those of a loop; the next loop begins at that lap."""
        seconds, self.seconds = self.seconds, self._zeros()
        return seconds

    def _zeros(self) -> dict[str, float]:
        zeros = {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.0}
        return zeros if self._communicated is None else zeros | {"comm": 0.0}

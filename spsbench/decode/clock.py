"""Clocks and the stopwatches that divide a loop into its phases.

The hot path calls ``lap`` four times per loop, so nothing here does more than a subtraction, or than put an
event behind the work of an asynchronous device. Events are read when the loop's own wait is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Protocol

import torch

Phase = Literal["draft", "verify", "sample", "other", "rollback"]
PHASES: tuple[Phase, ...] = ("draft", "verify", "sample", "other")
"""Of every loop; where a running state is put back, there is ``rollback`` beside them."""


class Clock(Protocol):
    """A source of seconds since an arbitrary start; it never runs backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        ...


class CommunicatingClock(Clock, Protocol):
    """A clock that also knows how long this process was within collectives, where a model is split."""

    def communicated(self) -> float:
        """Return the seconds spent in collectives since the last call."""
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
    """Return the clock's seconds, the machine's by default, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() if clock is None else clock.now()


class Stopwatch:
    """Divides the time since ``start`` into phases; each moment belongs to exactly one of them.

    Under a ``CommunicatingClock`` there is a phase more, ``comm``, which is taken out of the others.

    Args:
        clock: of the seconds.
        states: whether a running state is rolled back, which is then a phase of its own. Elsewhere it is the
            change of a length, and nobody looks at the clock for it.

    Attributes:
        seconds: seconds per phase since ``start`` or the last ``take``.
    """

    __slots__ = ("_begun_s", "_communicated", "_mark_s", "_now", "_states", "seconds")

    _begun_s: float
    _mark_s: float

    def __init__(self, clock: Clock, *, states: bool = False) -> None:
        self._now, self._states = clock.now, states
        # Not by isinstance, which looks through the whole protocol, in every sequence.
        self._communicated: Callable[[], float] | None = getattr(clock, "communicated", None)
        self.start()

    def start(self) -> None:
        """Zero the phases and measure from this moment on."""
        self.seconds = self._zeros()
        self._measure_from(self._now())
        self._begun_s = self._mark_s

    @property
    def passed_s(self) -> float:
        """Return the clock's seconds from ``start`` to the last lap."""
        return self._mark_s - self._begun_s

    def lap(self, phase: Phase) -> None:
        """Book the time since the last lap (or ``start``) on ``phase``."""
        now = self._now()
        self.seconds[phase] += now - self._mark_s
        self._mark_s = now
        if self._communicated is not None:
            comm_s = self._communicated()
            self.seconds[phase] -= comm_s
            self.seconds["comm"] += comm_s

    def rolled_back(self) -> None:
        """Book the time since the last lap on ``rollback``; where that is no phase, leave it to the next."""
        if self._states:
            self.lap("rollback")

    def skip(self) -> float:
        """Leave the time since the last lap out of every phase; returns how many seconds that were."""
        now = self._now()
        skipped_s = now - self._mark_s
        self._measure_from(now)
        return skipped_s

    def _measure_from(self, now: float) -> None:
        """Measure from a moment of the clock on; what was communicated until then is in no phase."""
        self._mark_s = now
        if self._communicated is not None:
            self._communicated()

    def take(self) -> Mapping[str, float]:
        """Return the phases' seconds up to the last lap and begin the next loop at that lap."""
        seconds = self.seconds
        self.seconds = self._zeros()
        return seconds

    def _zeros(self) -> dict[str, float]:
        zeros = {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.0}
        if self._states:
            zeros["rollback"] = 0.0
        return zeros if self._communicated is None else zeros | {"comm": 0.0}


class Event(Protocol):
    """A mark in the work of a device, passed when all before it is done; see ``torch.cuda.Event``."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class _Moment:
    """A recorded event, and when the host recorded it; once nobody holds it, the event is used again."""

    __slots__ = ("_pool", "at_s", "event")

    def __init__(self, event: Event, at_s: float, pool: list[Event]) -> None:
        self.event, self.at_s, self._pool = event, at_s, pool

    def __del__(self) -> None:
        self._pool.append(self.event)

    def until(self, later: _Moment) -> float:
        """Return the seconds of the device's time up to a later moment."""
        return float(self.event.elapsed_time(later.event)) / 1e3


_CAUGHT_UP, _LAUNCH_S = 0.1, 20e-6
"""How close behind the host a device is that waits for it: a share of the phase, or what one launch takes."""

_Laps = list[tuple[Phase | None, _Moment]]
"""What each moment ended; None where that is in no phase."""


class DeviceSeconds(Mapping[str, float]):
    """The phases' seconds of a loop as an asynchronous device passed them.

    They are read from the events when they are first looked into, while no clock runs: nothing is waited for
    if the device has passed them, as after any wait of the host since.
    """

    __slots__ = ("_laps", "_paced", "_seconds")

    def __init__(self, begin: _Moment, laps: _Laps) -> None:
        self._laps: tuple[_Moment, _Laps] | None = (begin, laps)
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._paced: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @property
    def paced_by_host(self) -> Mapping[str, float]:
        """Return each phase's seconds in which the device waited for the host's next launch.

        The device had caught up with the host when such a phase began, and when it ended.
        """
        self._read()
        return self._paced

    def _read(self) -> None:
        if self._laps is None:
            return
        (begin, laps), self._laps = self._laps, None
        if laps and not (last := laps[-1][1].event).query():
            last.synchronize()
        before, behind_s = begin, 0.0
        for phase, moment in laps:
            took_s = before.until(moment)
            then_s = behind_s
            behind_s = begin.until(moment) - (moment.at_s - begin.at_s)
            before = moment
            if phase is None:
                continue
            self._seconds[phase] = self._seconds.get(phase, 0.0) + took_s
            if max(then_s, behind_s) <= max(_CAUGHT_UP * took_s, _LAUNCH_S):
                self._paced[phase] = self._paced.get(phase, 0.0) + took_s

    def __getitem__(self, phase: str) -> float:
        self._read()
        return self._seconds[phase]

    def __iter__(self) -> Iterator[str]:
        self._read()  # which phases there are is in the laps
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)


class EventStopwatch(Stopwatch):
    """Divides the time of an asynchronous device into phases, by an event at each lap, without a wait.

    Each moment of the device's time belongs to one phase: the phase of the lap whose event it passed next.

    Args:
        make: makes an event; those that were read are used again.
        stream: where the loops' work is launched.
    """

    __slots__ = ("_begin", "_laps", "_make", "_pool", "_stream")

    def __init__(
        self, clock: Clock, make: Callable[[], Event], stream: Any = None, *, states: bool = False
    ) -> None:
        self._make, self._stream = make, stream
        self._pool: list[Event] = []
        super().__init__(clock, states=states)

    def start(self) -> None:
        super().start()
        self._begin, self._laps = self._moment(), _Laps()

    def lap(self, phase: Phase) -> None:
        self._mark_s = self._now()
        self._laps.append((phase, self._moment()))

    def skip(self) -> float:
        skipped_s = super().skip()
        self._laps.append((None, self._moment()))
        return skipped_s

    def take(self) -> Mapping[str, float]:
        """Return seconds that are read from the device's events when they are first used."""
        seconds = DeviceSeconds(self._begin, self._laps)
        if self._laps:
            self._begin = self._laps[-1][1]
        self._laps = []
        return seconds

    def _moment(self) -> _Moment:
        event = self._pool.pop() if self._pool else self._make()
        event.record(self._stream)
        return _Moment(event, self._mark_s, self._pool)


def stopwatch_of(device: torch.device, clock: Clock | None = None, *, states: bool = False) -> Stopwatch:
    """Return a started stopwatch for loops on that device, by default with the machine's clock."""
    clock = clock or SystemClock()
    if device.type != "cuda":
        return Stopwatch(clock, states=states)
    make = partial(torch.cuda.Event, enable_timing=True)
    return EventStopwatch(clock, make, torch.cuda.current_stream(device), states=states)

"""A host's clock and an asynchronous device beside it, in virtual time: no timing of this machine."""

from __future__ import annotations

from typing import Any

from spsbench.decode.clock import EventStopwatch


class VirtualDevice:
    """A clock that moves by what is launched, computed and waited for; the device has one queue.

    Attributes:
        now_s: the host's time.
        free_s: when the device will have done all that it was given.
        waits: how often the host waited.
        events: how many there are.
    """

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0
        self.waits = self.events = 0

    def now(self) -> float:
        return self.now_s

    def compute(self, seconds: float) -> None:
        """The host is busy."""
        self.now_s += seconds

    def launch(self, seconds: float, host_s: float = 5e-6) -> None:
        """The host gives the device work of so many seconds and goes on."""
        self.now_s += host_s
        self.free_s = max(self.free_s, self.now_s) + seconds

    def wait(self) -> None:
        self.waits += 1
        self.now_s = max(self.now_s, self.free_s)

    def event(self) -> VirtualEvent:
        self.events += 1
        return VirtualEvent(self)

    def stopwatch(self) -> EventStopwatch:
        return EventStopwatch(self, self.event)


class VirtualEvent:
    """As ``torch.cuda.Event``: what the device has not passed cannot be read."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self._at_s = float("nan")

    def record(self, stream: Any) -> None:
        self._at_s = max(self._device.free_s, self._device.now_s)

    def query(self) -> bool:
        return self._at_s <= self._device.now_s

    def synchronize(self) -> None:
        self._device.wait()

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        if end_event._at_s > self._device.now_s:
            raise RuntimeError("the device has not passed the event")
        return 1e3 * (end_event._at_s - self._at_s)

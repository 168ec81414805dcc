"""A closed loop: so many requests in flight until all of them are answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spsbench.load.reading import Reading, listened
from spsbench.peers.protocol import Ask
from spsbench.peers.server import Server


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests of one wave to one server."""

    server: int
    concurrency: int
    number: int
    readings: tuple[Reading, ...]
    drafted: int | None
    accepted: int | None

    @property
    def answered(self) -> list[Reading]:
        """Those that did not fail."""
        return [reading for reading in self.readings if reading.error is None]

    @property
    def window_s(self) -> float:
        """How long so many requests were in flight: until one ended for which no other could begin."""
        last_sent = max(reading.sent for reading in self.readings)
        return min(reading.done for reading in self.readings if reading.done > last_sent)

    @property
    def window_tokens(self) -> float:
        """Tokens that came within ``window_s``."""
        return sum(reading.tokens_by(self.window_s) for reading in self.answered)


def run_wave(server: Server, asks: Sequence[Ask], place: int, concurrency: int, number: int) -> Wave:
    """Send requests, each as soon as one of those in flight is answered.

    What a server counts in ``/metrics`` is used only at concurrency 1, where other clients would be noticed.
    """
    counted = server.counting() if concurrency == 1 else None
    started = time.perf_counter()
    pool = ThreadPoolExecutor(concurrency)
    try:
        readings = tuple(pool.map(lambda ask: listened(server, ask, started), asks))
    finally:
        pool.shutdown(cancel_futures=True)
    drafted, accepted = _sums(readings)
    if drafted is None and counted is not None:
        drafted, accepted = counted(sum(reading.tokens for reading in readings))
    return Wave(place, concurrency, number, readings, drafted, accepted)


def _sums(readings: Sequence[Reading]) -> tuple[int, int] | tuple[None, None]:
    """Draft tokens of all requests, if any reports them; an output that was too short for a draft has
    none."""
    told = [
        (reading.drafted, reading.accepted)
        for reading in readings
        if reading.drafted is not None and reading.accepted is not None
    ]
    return (sum(each for each, _ in told), sum(each for _, each in told)) if told else (None, None)

"""What a server counts over all of its requests, and what one of them added."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spsbench.peers.dialects.dialect import Counters

_LATE_S = 1.0
"""Servers count shortly after they have answered."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums of ``Counters`` since the server's start, over all of their labels."""

    written: int
    drafted: int
    accepted: int


def read_tally(metrics: str | None, counters: Counters) -> Tally | None:
    """The sums in a page of Prometheus' text format; None where one is missing."""
    if metrics is None:
        return None
    sums: dict[str, float] = {}
    for line in metrics.splitlines():
        if line.startswith("#"):
            continue
        sample, _, value = line.rpartition(" ")
        name = sample.partition("{")[0]
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    names = (counters.written, counters.drafted, counters.accepted)
    if any(name not in sums for name in names):
        return None
    return Tally(*(int(sums[name]) for name in names))


def counted_between(before: Tally, now: Callable[[], Tally | None], tokens: int) -> tuple[int, int] | None:
    """Draft tokens proposed and kept by a request of so many tokens.

    None where the server wrote another number of tokens meanwhile: it has other clients, or has not counted.
    """
    deadline = time.monotonic() + _LATE_S
    while (after := now()) is not None:
        if after.written - before.written == tokens:
            return after.drafted - before.drafted, after.accepted - before.accepted
        if after.written - before.written > tokens or time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    return None

"""What was heard of one request, and when."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from spsbench.peers.protocol import Ask, PeerError, PeerGone
from spsbench.peers.server import Server


@dataclass(frozen=True, slots=True)
class Reading:
    """One request. Times are seconds since the start of its wave.

    Attributes:
        counts: how many there were then, of all; as long as ``times``.
    """

    sent: float
    done: float
    times: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    drafted: int | None = None
    accepted: int | None = None
    error: str | None = None

    @property
    def tokens(self) -> int:
        """How many were written."""
        return round(self.counts[-1]) if self.counts else 0

    @property
    def ttft_s(self) -> float | None:
        """Until the first token."""
        return self.times[0] - self.sent if self.times else None

    @property
    def tpot_s(self) -> float | None:
        """For each further token; None where all came at once."""
        if not self.times or self.counts[-1] <= self.counts[0]:
            return None
        return (self.times[-1] - self.times[0]) / (self.counts[-1] - self.counts[0])

    def tokens_by(self, time_s: float) -> float:
        """How many were there at that time."""
        place = bisect_right(self.times, time_s)
        return self.counts[place - 1] if place else 0.0


def listened(server: Server, ask: Ask, started: float) -> Reading:
    """Ask for one output and listen to it."""
    sent = time.perf_counter() - started
    heard: list[tuple[float, int | None]] = []
    total: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    try:
        for event in server.stream(ask):
            now = time.perf_counter() - started
            total = _latest(event.tokens, total)
            drafted, accepted = _latest(event.drafted, drafted), _latest(event.accepted, accepted)
            if event.text:
                heard.append((now, event.tokens))
            if max(total or 0, len(heard)) > ask.max_new_tokens:
                raise PeerError(f"it wrote more than the {ask.max_new_tokens} tokens that were asked for")
    except PeerGone:
        raise
    except PeerError as error:
        return Reading(sent, time.perf_counter() - started, error=str(error))
    done = time.perf_counter() - started
    if not total:
        return Reading(sent, done, error="it does not say how many tokens it wrote")
    times, counts = _counted(heard, total, done)
    if any(later < earlier for earlier, later in pairwise(counts)):
        return Reading(sent, done, error="its count of tokens goes backwards")
    return Reading(sent, done, times, counts, drafted, accepted)


def _latest(said: int | None, before: int | None) -> int | None:
    return before if said is None else said


def _counted(
    heard: list[tuple[float, int | None]], total: int, done: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and counts that end with all tokens. Where only their sum is reported, events have equal
    shares."""
    if any(count is None for _, count in heard):
        heard_at = tuple(time_s for time_s, _ in heard)
        return heard_at, tuple(total * (place + 1) / len(heard) for place in range(len(heard)))
    points = [(time_s, float(count or 0)) for time_s, count in heard]
    if not points or points[-1][1] < total:
        points.append((done, float(total)))  # e.g. a stop token, which has no text
    times, counts = zip(*points, strict=True)
    return times, counts

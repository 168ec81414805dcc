"""Which wave is sent when: every server in turn, at every concurrency in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spsbench.peers.protocol import Ask

FEWEST_WAVES = 6
"""Of one server at one concurrency; an interval is over waves."""

_SMALLEST = 6
_IN_FLIGHT_TIMES = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """A wave that is to be sent.

    Attributes:
        concurrency, number: see ``Wave``.
    """

    server: int
    concurrency: int
    number: int
    asks: tuple[Ask, ...]


def turns(
    asks: Sequence[Ask], samples: int, concurrencies: Sequence[int], servers: int, seed: int
) -> Iterator[Turn]:
    """Waves in the order in which they are sent.

    All servers get the same prompts at once, now one first and now the other, so that a machine that becomes
    slower meanwhile slows all of them. Every request has its own seed, which servers share.
    """
    waves = {each: list(_waves(asks, samples, each, seed)) for each in concurrencies}
    for number in range(max(map(len, waves.values()))):
        for concurrency in concurrencies:
            if number >= len(waves[concurrency]):
                continue
            order = range(servers) if number % 2 == 0 else range(servers - 1, -1, -1)
            for server in order:
                yield Turn(server, concurrency, number, waves[concurrency][number])


def _waves(asks: Sequence[Ask], samples: int, concurrency: int, seed: int) -> Iterator[tuple[Ask, ...]]:
    """The requests of one server at one concurrency, in waves of equal size."""
    size = max(_SMALLEST, _IN_FLIGHT_TIMES * concurrency)
    count = max(FEWEST_WAVES, -(-samples * len(asks) // size))
    drawn = random.Random(f"{seed} {concurrency}")
    order: list[Ask] = []
    while len(order) < count * size:
        order += drawn.sample(list(asks), len(asks))
    seeded = [replace(ask, seed=drawn.getrandbits(31)) for ask in order[: count * size]]
    for start in range(0, len(seeded), size):
        yield tuple(seeded[start : start + size])

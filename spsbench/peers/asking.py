"""Our sampling and seeds in the words of the protocol."""

from __future__ import annotations

from spsbench.peers.protocol import Sampling
from spsbench.records import SamplingParams

SEEDS = 1 << 31
"""Seeds of engines are 32-bit integers, signed in some of them."""


def sampling_of(params: SamplingParams) -> Sampling:
    """The same sampling, as an engine is asked for it."""
    return Sampling(**params.record())


def request_seed(seed: int) -> int:
    """A seed that every engine takes: ``seed`` modulo ``SEEDS``."""
    return seed % SEEDS

"""The interface that the runner needs of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from spsbench.records import Generation, Request


class Engine(Protocol):
    """Generates one sequence at a time for one arm."""

    name: str

    def generate(self, request: Request) -> Generation:
        """Answer a request; the clock stops at the last emitted token."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch has so many threads of the CPU while the block lasts."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class ThreadedEngine:
    """An engine whose forwards are torch's, for a run that may give torch one thread otherwise.

    Over ONNX Runtime torch keeps to one thread, since its pool and the session's would wait for each other.
    An engine over torch needs the run's threads, but only during its own sequences.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self.name = engine.name
        self._engine, self._threads = engine, threads

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``; the engine's clock does not see the threads being set."""
        with torch_threads(self._threads):
            return self._engine.generate(request)

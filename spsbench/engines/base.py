"""The interface that the runner needs of an engine."""

from __future__ import annotations

from typing import Protocol

from spsbench.records import Generation, Request


class Engine(Protocol):
    """Generates one sequence at a time for one arm."""

    name: str

    def generate(self, request: Request) -> Generation:
        """Answer a request; the clock stops at the last emitted token."""
        ...

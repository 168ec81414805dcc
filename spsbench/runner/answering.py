"""What an engine makes of several requests: each alone, or as many at once as it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spsbench.engines.base import Engine
from spsbench.engines.batch import BatchedEngine
from spsbench.peers.peer import PeerError
from spsbench.records import Generation, Request

FAILURES = (RuntimeError, ValueError, IndexError, ArithmeticError, MemoryError, PeerError)
"""What fails a sequence, and not the run."""

Answer = Generation | Exception


def answers(engine: Engine, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
    """The answer to each request with its place, as they come; a batch that fails fails all the rest."""
    waiting = dict.fromkeys(range(len(requests)))
    try:
        for place, answer in _asked(engine, requests):
            del waiting[place]
            yield place, answer
    except FAILURES as error:
        for place in waiting:
            yield place, error


def _asked(engine: Engine, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
    if isinstance(engine, BatchedEngine):
        yield from engine.generate_all(requests)
        return
    for place, request in enumerate(requests):
        try:
            answer: Answer = engine.generate(request)
        except FAILURES as error:
            answer = error
        yield place, answer


def reason_of(error: Exception) -> str:
    """An error as a sample records it, in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"

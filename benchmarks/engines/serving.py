"""A worker's side: load once, then answer one request a line. The standard library alone."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Protocol

from benchmarks.engines.messages import Answer, Failure, Loaded, Message, Request, Settings, read, written


class Served(Protocol):
    """An engine with its models loaded."""

    def describe(self) -> Loaded:
        """What was loaded."""
        ...

    def generate(self, request: Request) -> Answer:
        """Decode one sequence greedily; the times are taken here, around decoding alone."""
        ...


def serve(load: Callable[[Settings], Served]) -> None:
    """Answer standard input until it ends.

    What the engine prints goes to standard error: standard output is ours alone.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    served: Served | None = None
    for line in sys.stdin:
        try:
            message = read(line)
            if isinstance(message, Settings):
                if message.cores:
                    os.sched_setaffinity(0, message.cores)
                served = load(message)
                answer: Message = served.describe()
            elif isinstance(message, Request) and served is not None:
                answer = served.generate(message)
            else:
                raise ValueError(f"{type(message).__name__} is not expected here")
        except Exception as error:
            traceback.print_exc()
            first = next(iter(str(error).strip().splitlines()), "")
            answer = Failure(f"{type(error).__name__}: {first}")
        answers.write(written(answer))


def until_stop(ids: list[int], request: Request) -> tuple[int, ...]:
    """The output up to the token that ends it: some engines emit what the last loop held beyond it."""
    ends = [place for place, token in enumerate(ids) if token in request.stop_ids]
    return tuple(ids[: min(ends[0] + 1 if ends else len(ids), request.max_new_tokens)])

"""Several requests of an engine at once: who arrives when, and who is aborted. Standard library only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from spsbench.base import Answer, Ask, Together, Wave
from spsbench.parts.external.serving import until_stop

StepResult = tuple[int, list[int], bool | Exception]
"""A request's number, all of its tokens, and whether it ended, or the error that it ended with."""


class Steps(Protocol):
    """An engine that takes requests while others decode, and is told to go on."""

    def add(self, number: int, ask: Ask) -> None:
        """Take a request."""

    def step(self) -> Iterable[StepResult]:
        """Advance. An error that is raised is the whole engine's, and ends the wave."""

    def abort(self, number: int) -> None:
        """Forget a request; its number is not used again in this wave."""


@dataclass
class _Running:
    ask: Ask
    abort: int | None
    written: int = 0


def stepped(wave: Wave, engine: Steps) -> Together:  # noqa: C901 - one loop, as an engine's own
    """The answers of an engine that is driven step by step."""
    results = Together([None] * len(wave.asks))
    waiting = sorted(range(len(wave.asks)), key=lambda number: wave.after[number])
    running: dict[int, _Running] = {}
    heard = 0
    while waiting or running:
        while waiting and len(running) < wave.at_once:
            if running and heard < wave.after[waiting[0]]:
                break
            number = waiting.pop(0)
            try:
                engine.add(number, wave.asks[number])
            except Exception as error:
                results.fail(number, error)
            else:
                running[number] = _Running(wave.asks[number], wave.abort[number])
        for number, ids, ended in _step_results(engine, running):
            if number not in running:  # some engines go on for a step after an abort
                continue
            one = running[number]
            heard += len(ids) - one.written
            one.written = len(ids)
            if isinstance(ended, Exception):
                del running[number]
                results.fail(number, ended)
            elif one.abort is not None and len(ids) >= one.abort:
                del running[number]
                if not ended:
                    engine.abort(number)
            elif ended:
                del running[number]
                results.answers[number] = Answer(*until_stop(ids, one.ask))
    return results


def _step_results(engine: Steps, running: Collection[int]) -> Iterator[StepResult]:
    """If the step fails, its requests are aborted before the next wave."""
    try:
        yield from list(engine.step()) if running else ()
    except Exception:
        for number in list(running):
            with suppress(Exception):
                engine.abort(number)
        raise


Hear = Callable[[int], bool]
"""Takes how many tokens a request has so far; whether it is to be aborted now."""


def threaded(wave: Wave, send: Callable[[Ask, Hear | None], Answer | None]) -> Together:
    """The answers of a server that takes requests from several threads.

    ``send`` is given what to call with the tokens so far of a request that is to be aborted, and nothing for
    another, whose tokens are heard of when it ends.
    """
    results = Together([None] * len(wave.asks))
    changed = threading.Condition()
    heard = running = 0

    def one(number: int) -> None:
        nonlocal heard, running
        most, written = wave.abort[number], 0

        def hear(tokens: int) -> bool:
            nonlocal heard, written
            with changed:
                heard += tokens - written
                written = tokens
                changed.notify_all()
            return most is not None and tokens >= most

        with changed:
            changed.wait_for(lambda: not running or heard >= wave.after[number])
            running += 1
        try:
            answer = send(wave.asks[number], None if most is None else hear)
            if answer is not None and most is None:
                hear(len(answer.output_ids))
                results.answers[number] = answer
        except Exception as error:
            results.fail(number, error)
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    order = sorted(range(len(wave.asks)), key=lambda number: wave.after[number])
    with ThreadPoolExecutor(wave.at_once) as pool:
        list(pool.map(one, order))
    return results

"""The worker's side of a distributed run: a process that measures for another one.

It knows nothing of how it is reached. It finds task, data and models by itself, as the run's own settings
name them, so that only keys travel to it, and finished samples back.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from spsbench.cluster import FLAG
from spsbench.config import RunConfig
from spsbench.engines.base import Engine
from spsbench.environment import describe_environment
from spsbench.errors import SpsbenchError, UsageError
from spsbench.models.pair import Pair
from spsbench.records import Arm
from spsbench.runner.backends import Backends
from spsbench.runner.conditions import conditions_of
from spsbench.runner.execute import all_turns, facts_of, load, measure, warm_up
from spsbench.runner.finalize import peak_memory_bytes
from spsbench.runner.plan import Plan, plan
from spsbench.runner.proof import proven
from spsbench.runner.schedule import Turn, together
from spsbench.runner.spread import Block, Item
from spsbench.store import Key, differences, plain
from spsbench.summary_types import Conditions


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a worker is.

    Attributes:
        environment: of ``describe_environment``.
    """

    machine: str
    process: int
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        """Machine and process."""
        return f"{self.machine}:{self.process}"


class Worker:
    """Measures what it is given; asked in this order: ``introduce``, ``prepare``, ``load``, ``work``."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config = config
        with suppress(OSError):
            os.chdir(folder)
        self._answers: Iterator[tuple[Key, Any]] = iter(())

    def introduce(self) -> Introduction:
        """Who this is; nothing is loaded for it."""
        return Introduction(platform.node(), os.getpid(), describe_environment())

    def prepare(self, identity: dict[str, Any]) -> Conditions:
        """Find task, data and models; the conditions that this worker measures under."""
        with _saying_where():
            self._plan: Plan = plan(self._config)
            if lines := differences(identity, plain(self._plan.identity())):
                head = "something else would be measured (the run's value -> the worker's):"
                raise UsageError("\n".join([head, *lines, ""]), flag=FLAG, remedy="Give all the same files.")
        return conditions_of(self._plan, describe_environment())

    def load(self) -> dict[str, Any]:
        """Load the models and warm every arm up; what run.json keeps of them, see ``facts_of``."""
        with _saying_where():
            warm_up(self._plan, self._engines, next(iter(self._turns.values())))
        return facts_of(self._plan, self._engines, self._pair, self._backends.fallbacks)

    def work(self, block: Block | None = None) -> tuple[Key, Any] | None:
        """The next item's key and answer; None when the block is done."""
        if block is not None:
            self._answers = getattr(self, f"_{block.work}")(block.items)
        return next(self._answers, None)

    def peak_memory_bytes(self) -> int:
        """See ``finalize.peak_memory_bytes``."""
        return peak_memory_bytes()

    @cached_property
    def _turns(self) -> dict[Key, Turn]:
        return {turn.key: turn for turn in all_turns(self._plan)}

    @cached_property
    def _pair(self) -> Pair:
        return load(self._plan)

    @cached_property
    def _backends(self) -> Backends:
        return Backends(self._pair, self._plan.slots, corpus=tuple(p.ids for p in self._plan.prompts))

    @cached_property
    def _engines(self) -> dict[Arm, Engine]:
        return self._backends.all(self._plan.arms)

    def _measure(self, items: tuple[Item, ...]) -> Iterator[tuple[Key, Any]]:
        turns = [self._turns[item.key] for item in items]
        for sample in measure(self._plan, self._engines, together(turns), self._pair):
            yield sample.key, sample

    def _score(self, items: tuple[Item, ...]) -> Iterator[tuple[Key, Any]]:
        prompts, texts = zip(*(item.given for item in items), strict=True)
        scores = self._plan.task.score(prompts, texts)
        yield from zip((item.key for item in items), scores, strict=True)

    def _prove(self, items: tuple[Item, ...]) -> Iterator[tuple[Key, Any]]:
        for item in items:
            yield item.key, proven(self._plan, self._pair, self._backends)


@contextmanager
def _saying_where() -> Iterator[None]:
    """An error names the machine that it comes from."""
    try:
        yield
    except SpsbenchError as error:
        error.message = f"on {platform.node()}: {error.message}"
        raise

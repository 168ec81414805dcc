"""An engine in the process of its tests, as a peer of the audit. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from spsbench.base import Answer, Ask, Described, Sampling, Together, Wave
from spsbench.parts.external.serving import until_stop


@dataclass(frozen=True)
class Wanted(Sampling):
    """What a function is asked for: how tokens are drawn, and where the output ends.

    The temperature of a greedy request is 0.
    """

    max_new_tokens: int = 0
    stop_ids: list[int] = field(default_factory=list)


Function = Callable[[list[int], Wanted, int | None], Answer | Iterable[int]]
"""``generate(prompt_ids, sampling, seed)``: the output's ids, or an ``Answer`` with counters.

Ids after the end are cut off. ``seed`` is None where the engine's own randomness is asked for.
"""


@dataclass(frozen=True)
class Inside:
    """What a worker would give to ``serve``, or a function alone. Its errors are the test's."""

    name: str
    engine: Any

    def describe(self) -> Described:
        if hasattr(self.engine, "describe"):
            described: Described = self.engine.describe()
            return described
        return Described(self.name, "in this process")

    def generate(self, ask: Ask) -> Answer:
        if hasattr(self.engine, "generate"):
            answer = self.engine.generate(ask)
        else:
            how = vars(ask.sampling) | ({"temperature": 0.0} if ask.sampling.greedy else {})
            wanted = Wanted(**how, max_new_tokens=ask.max_new_tokens, stop_ids=ask.stop_ids)
            answer = self.engine(ask.prompt_ids, wanted, ask.seed)
        return (
            answer if isinstance(answer, Answer) else Answer(*until_stop([int(one) for one in answer], ask))
        )

    def together(self, wave: Wave) -> Together:
        answers: Together = self.engine.together(wave)
        return answers

    def close(self) -> None:
        """End it, if it has something to end."""
        getattr(self.engine, "close", lambda: None)()

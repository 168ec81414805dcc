"""A sequence that every process of a split target runs, all of them drafting and deciding alike."""

from __future__ import annotations

from spsbench.engines.base import Engine
from spsbench.models.tensor_parallel import Order, SplitLM
from spsbench.records import Arm, Generation, Request


class AlikeEngine:
    """The leading process's side: it has the others run each sequence with it."""

    def __init__(self, engine: Engine, arm: Arm, target: SplitLM) -> None:
        self.name = engine.name
        self._engine, self._arm, self._target = engine, arm, target

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``."""
        ranks = self._target.ranks
        with ranks.together("a sequence"):
            ranks.tell(Order.GENERATE)
            ranks.share((self._arm, request))
            return generate_alike(self._engine, request, self._target)


def generate_alike(engine: Engine, request: Request, target: SplitLM) -> Generation:
    """A sequence, checked loop by loop (``SplitLM``) and once more as a whole against the other processes."""
    ranks = target.ranks
    with ranks.together("a sequence"), target.alike():
        made = engine.generate(request)
        accepted = [loop.accepted for loop in made.loops or ()]
        ranks.agree([*made.tokens, *accepted], "a finished sequence")
    return made

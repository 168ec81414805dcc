"""Scenes whose trained drafters compute nothing twice, so that their drawn drafts can be counted to K = 7."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode.protocols import Drafter
from spsbench.law.enumeration import EXACT, Scene, TableModel, worst_difference
from spsbench.testing import described

DRAWN = {"plain": SamplingParams(), "nucleus": SamplingParams(temperature=0.8, top_p=0.8)}

# Counting ends in seconds to five tokens, in half a minute at seven: the decisions of 128 drafts are counted.
LONG = [
    pytest.param(k, law, id=f"{law}-{k}", marks=pytest.mark.thorough if k < 6 else pytest.mark.soak)
    for k in (4, 5, 6, 7)
    for law in DRAWN
]


class _Call(NamedTuple):
    """One call of a model, with what its target had read then."""

    name: str
    args: tuple[Hashable, ...]
    read: tuple[int, ...]


class Remembered:
    """A drafter's model, whose answers are kept by everything that it was asked since it began a sequence.

    An enumeration asks for the same few drafts thousands of times. Keys are whole histories, with the
    tokens that the target had read at each call: what they have in common is not assumed of the model. An
    answer that is not known is the model's own, after the same calls in the same order.

    Args:
        model: asked by ``begin``, ``score``, ``rollback`` or ``rows``; it answers as its history tells.
        target: whose states it reads.
    """

    def __init__(self, model: Any, target: TableModel) -> None:
        self.model_itself = model
        self.computed = 0
        self._target = target
        self._asked: tuple[_Call, ...] = ()
        self._done: tuple[_Call, ...] = ()
        self._known: dict[tuple[_Call, ...], tuple[Any, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model_itself, name)

    @property
    def length(self) -> int:
        """Number of tokens read."""
        return self._settled()[1] if self._asked else int(self.model_itself.length)

    def begin(self, *args: Any) -> Any:
        self._asked = ()
        self._note("begin", *args)
        return self._settled()[0]

    def score(self, *args: Any, **options: Any) -> Any:
        self._note("score", *args, *options.values())
        return self._settled()[0]

    def rows(self, *args: Any) -> Any:
        self._note("rows", *args)
        return self._settled()[0]

    def rollback(self, *args: Any) -> None:
        """Have the model roll back once something is asked of it after that."""
        self._note("rollback", *args)

    def _note(self, name: str, *args: Any) -> None:
        self._asked = (*self._asked, _Call(name, tuple(map(_hashable, args)), tuple(self._target._fed)))

    def _settled(self) -> tuple[Any, int]:
        """The last call's answer, and how many tokens are read after it."""
        if self._asked not in self._known:
            begun = len(self._done) if self._asked[: len(self._done)] == self._done else 0
            for count in range(begun + 1, len(self._asked) + 1):
                self._ask(self._asked[:count])
        answer, length = self._known[self._asked]
        return answer.clone() if isinstance(answer, Tensor) else answer, length

    def _ask(self, history: tuple[_Call, ...]) -> None:
        """Have the model itself answer the last call, over a target that has read what it had."""
        call = history[-1]
        now, self._target._fed = self._target._fed, list(call.read)
        args = [torch.tensor(arg[1]) if _is_tensor(arg) else arg for arg in call.args]
        answer = getattr(self.model_itself, call.name)(*args)
        self._target._fed = now
        self.computed += call.name in ("score", "rows")
        kept = answer.clone() if isinstance(answer, Tensor) else answer
        self._known[history] = kept, int(getattr(self.model_itself, "length", 0))
        self._done = history


def _hashable(arg: Any) -> Hashable:
    if isinstance(arg, Tensor):
        return Tensor, tuple(arg.tolist())
    return tuple(arg) if isinstance(arg, list) else arg


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, tuple) and arg[:1] == (Tensor,)


def remembered(scene: Scene) -> Scene:
    """The scene with a trained drafter whose model is ``Remembered``; drafter and loop are production's."""
    build: Callable[[], Drafter] = scene.make

    @cache
    def made() -> Any:
        drafter: Any = build()
        name = "model" if hasattr(drafter, "model") else "_ahead"
        if not isinstance(getattr(drafter, name), Remembered):
            setattr(drafter, name, Remembered(getattr(drafter, name), scene.target))
        return drafter

    return replace(scene, make=made)


def prove(scenes: Iterable[Scene], k: int, *, again: bool = False) -> None:
    """Prove the exact law of drafts of K tokens; ``again``: by models that compute every answer anew."""
    drafted = set[int]()
    for scene in scenes:
        worst = worst_difference(scene if again else remembered(scene))
        assert worst.is_none, described(worst, scene)
        assert worst.limit == EXACT
        drafted |= worst.drafted
    assert k in drafted


def prove_drawn(scenes: Iterable[Scene], k: int) -> None:
    """The same of drawn ones; of more than five tokens only behind an earlier loop."""
    prove((scene for scene in scenes if k <= 5 or scene.before), k)

"""Forwards of an ONNX graph over its own KV cache, with inputs and outputs bound once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spsbench.models.onnx_graph import FEATURES

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from spsbench.models.blueprint import Blueprint
    from spsbench.models.checkpoint import Floats

_BLOCK = 256
# Larger blocks are prompts: no two are of the same length, and a prompt does not wait for a binding.
_MOST_ROWS_KEPT = 65
TABLES = ("cos", "sin")


@dataclass(frozen=True, slots=True)
class _Bound:
    """One shape of a forward, bound to its own memory.

    Attributes:
        hidden: [n, width] to be filled with embeddings.
        logits: [last, V], overwritten by the next forward of this shape.
        features: [n, hidden] likewise; None where nobody asked.
    """

    binding: Any
    hidden: Floats
    logits: Tensor
    features: Tensor | None


@dataclass(frozen=True, slots=True)
class OnnxCache:
    """Memory for the keys and values of a sequence, with the rotary tables beside it."""

    memory: dict[str, Any]
    slots: int


class OnnxForward:
    """Appends tokens to a cache and scores them.

    Past and present keys and values are the same memory: nothing is copied, and to forget tokens is to
    start earlier.

    Attributes:
        features: [n, hidden] of the last forward, overwritten by the next one of the same shape; None where
            they are not kept.
    """

    def __init__(
        self,
        session: InferenceSession,
        blueprint: Blueprint,
        width: int = 0,
        features: bool = False,
        cache: OnnxCache | None = None,
    ) -> None:
        self._session, self._plan = session, blueprint
        self._width, self._keeps_features = width or blueprint.hidden, features
        self.features: Tensor | None = None
        self._memory, self._slots = ({}, 0) if cache is None else (cache.memory, cache.slots)
        self._crossed: dict[str, Any] = {}
        self._bound: dict[tuple[int, int], _Bound] = {}
        # What is written into these arrays is what the graph reads: a value shares an array's memory.
        self._seen, self._total = np.zeros(1, np.int32), np.zeros((), np.int32)

    def __call__(self, embed: Callable[[Floats], None], start: int, n: int, last: int) -> Tensor:
        """Score n tokens after the first ``start`` cached ones.

        Args:
            embed: writes their embeddings into an array [n, width].

        Returns:
            [last, V] logits, overwritten by the next forward of the same shape.
        """
        self._make_room(start, start + n)
        bound = self._bound.get((n, last)) or self._bind(n, last)
        embed(bound.hidden)
        self._seen[0] = start + n - 1
        self._total[...] = start + n
        self._session.run_with_iobinding(bound.binding)
        self.features = bound.features
        return bound.logits

    def attend(self, crossed: Mapping[str, Any]) -> None:
        """Give every layer the keys and values of a source, as the runtime's values; until the next call."""
        self._crossed = dict(crossed)
        self._bound.clear()

    def _make_room(self, held: int, wanted: int) -> None:
        """Grow the cache to hold ``wanted`` tokens; the first ``held`` stay."""
        if wanted <= self._slots:
            return
        plan = self._plan
        slots = max(-(-wanted // _BLOCK) * _BLOCK, 2 * held)
        grown: dict[str, Any] = {}
        for number in range(plan.layers):
            for name in (f"key_{number}", f"value_{number}"):
                room = np.zeros((1, plan.kv_heads, slots, plan.head_dim), np.float32)
                if held:
                    room[:, :, :held] = self._memory[name].numpy()[:, :, :held]
                grown[name] = value_of(room)
        self._memory, self._slots = grown | rotary_tables(plan, slots), slots
        self._bound.clear()

    def _bind(self, n: int, last: int) -> _Bound:
        binding = self._session.io_binding()
        hidden, rows = np.zeros((1, n, self._width), np.float32), np.array([-last])
        logits = np.zeros((1, last, self._plan.vocab_size), np.float32)
        own = {"hidden": hidden, "rows": rows, "seen": self._seen, "total": self._total}
        for name, value in {name: value_of(array) for name, array in own.items()}.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("logits", value_of(logits))
        for name, value in self._memory.items():
            binding.bind_ortvalue_input(name, value)
            if name not in TABLES:
                binding.bind_ortvalue_output(f"new_{name}", value)
        for name, value in self._crossed.items():
            binding.bind_ortvalue_input(name, value)
        features = np.zeros((1, n, self._plan.hidden), np.float32) if self._keeps_features else None
        if features is not None:
            binding.bind_ortvalue_output(FEATURES, value_of(features))
        kept = None if features is None else torch.from_numpy(features[0])
        bound = _Bound(binding, hidden[0], torch.from_numpy(logits[0]), kept)
        if n <= _MOST_ROWS_KEPT:
            self._bound[n, last] = bound
        return bound


def rotary_tables(plan: Blueprint, slots: int) -> dict[str, Any]:
    """Cosines and sines [slots, head_dim / 2] as the runtime's values; none where no position rotates."""
    if not len(plan.frequencies):
        return {}
    angles = torch.arange(slots, dtype=torch.float32).unsqueeze(1) * plan.frequencies
    return {
        name: value_of((table * plan.rotary_scale).numpy())
        for name, table in zip(TABLES, (angles.cos(), angles.sin()), strict=True)
    }


def value_of(array: Any) -> Any:
    """An array as the runtime's value, which shares its memory and keeps it."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(array)

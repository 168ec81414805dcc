"""The graph of a forward over several sequences at once, each with its own cache length.

The runtime's attention takes either one sequence or one token of each. So all products are made of the tokens
of all sequences, one after the other, and only attention is done sequence by sequence: it reads what is of
one sequence alone, and computes what it computes for that sequence alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from spsbench.models.blueprint import Blueprint
from spsbench.models.checkpoint import StoredWeights
from spsbench.models.onnx_graph import Builder, Graph


def build_batch_graph(plan: Blueprint, stored: StoredWeights, bits: int | None, batch: int) -> Graph:
    """The graph of B sequences of n tokens each.

    Inputs: ``hidden`` [1, B n, hidden], sequence after sequence; ``rows`` [m], which of the B n rows are
    wanted; ``cos`` and ``sin`` as in ``Graph``; and for each sequence b ``seen_b`` [1], ``total_b`` [] and
    per layer ``key_i_b`` and ``value_i_b`` [1, kv_heads, slots, head_dim]. Outputs: ``logits`` [1, m, V], and
    ``new_key_i_b`` and ``new_value_i_b``, to be bound to the same memory as their inputs.
    """
    return _BatchBuilder(plan, stored, bits, batch).graph()


class _BatchBuilder(Builder):
    def __init__(self, plan: Blueprint, stored: StoredWeights, bits: int | None, batch: int) -> None:
        super().__init__(plan, stored, bits)
        self._batch = batch
        self._names = [f"_{row}" for row in range(batch)]

    def _over_cache(self, states: Sequence[str], number: int, row: str = "") -> str:
        parts = [self._split(name) for name in states]
        found = [
            super(_BatchBuilder, self)._over_cache([part[b] for part in parts], number, name)
            for b, name in enumerate(self._names)
        ]
        return self._node("Concat", found, axis=1)

    def _split(self, state: str) -> list[str]:
        """What is of each sequence; an input that is absent is absent for all."""
        if not state:
            return [""] * self._batch
        outputs = [f"{state}{name}" for name in self._names]
        self._node("Split", [state], outputs, axis=1, num_outputs=self._batch)
        return outputs

    def _score(self, states: str) -> None:
        wanted = self._node("Gather", [states, "rows"], axis=1)
        self._matrix(wanted, [self._head()], self._plan.logit_scale, out="logits")

    def _signature(self) -> tuple[list[Any], list[Any]]:
        plan, value = self._plan, helper.make_tensor_value_info
        floats, longs, ints = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
        table: list[str | int | None] = ["slots", plan.head_dim // 2]
        slots: list[str | int | None] = [1, plan.kv_heads, "slots", plan.head_dim]
        caches = [
            f"{kind}_{number}{name}"
            for number in range(plan.layers)
            for kind in ("key", "value")
            for name in self._names
        ]
        inputs = [
            value("hidden", floats, [1, "tokens", self._width]),
            value("rows", longs, ["wanted"]),
            value("cos", floats, table),
            value("sin", floats, table),
            *(value(f"seen{name}", ints, [1]) for name in self._names),
            *(value(f"total{name}", ints, []) for name in self._names),
            *(value(name, floats, slots) for name in caches),
        ]
        outputs = [
            value("logits", floats, [1, "wanted", plan.vocab_size]),
            *(value(f"new_{name}", floats, slots) for name in caches),
        ]
        return inputs, outputs

"""A T5 as two ONNX graphs: the encoder, once a sequence, and a decoder over a KV cache.

The encoder's graph gives the keys and values of every layer's cross-attention. The decoder's adds the bias of
relative positions to its own attention; it is looked up once a forward, for all layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper

from spsbench.models.blueprint import Blueprint
from spsbench.models.checkpoint import Floats, StoredWeights
from spsbench.models.onnx_graph import Builder, Graph
from spsbench.models.t5_plan import T5Plan

_FLOATS = TensorProto.FLOAT
_BIAS = "position_bias"


def crossed_names(layers: int) -> list[str]:
    """Keys and values that the encoder gives and the decoder reads, [1, heads, source, head_dim] each."""
    return [f"crossed_{kind}_{number}" for number in range(layers) for kind in ("key", "value")]


def encoder_graph(plan: T5Plan, stored: StoredWeights, bits: int | None) -> Graph:
    """From ``hidden`` [1, n, hidden], the embedded source, to ``crossed_names``; see ``build_graph``."""
    return _EncoderBuilder(plan, plan.encoder, stored, bits).graph()


def decoder_graph(plan: T5Plan, stored: StoredWeights, bits: int | None) -> Graph:
    """As ``Graph`` says, without tables and features, and with ``crossed_names`` as inputs."""
    return _DecoderBuilder(plan, plan.decoder, stored, bits).graph()


class _T5Builder(Builder):
    """What both halves have in common."""

    _half: str

    def __init__(self, whole: T5Plan, half: Blueprint, stored: StoredWeights, bits: int | None) -> None:
        super().__init__(half, stored, bits)
        self._whole = whole
        self._shapes = whole.shapes

    def _head(self) -> str:
        return "lm_head" if "lm_head.weight" in self._stored else "shared"

    def _layers(self, state: str) -> str:
        added = ""
        for number in range(self._plan.layers):
            prefix = f"{self._half}.block.{number}.layer."
            for place, compute in enumerate(self._blocks(number)):
                unit = f"{prefix}{place}."
                state, normed = self._normed(state, added, f"{unit}layer_norm.weight")
                added = compute(normed, unit)
        return self._normed(state, added, f"{self._half}.final_layer_norm.weight", "states")[1]

    def _blocks(self, number: int) -> list[Any]:
        """What the parts of a layer add to the residual stream, in order: functions of (input, prefix)."""
        raise NotImplementedError

    def _feed_forward(self, x: str, prefix: str) -> str:
        unit = f"{prefix}DenseReluDense."
        if self._plan.family.gated:
            gate, up = (self._matrix(x, [f"{unit}{name}"]) for name in ("wi_0", "wi_1"))
            inner = self._node("Mul", [self._activated(gate), up])
        else:
            inner = self._activated(self._matrix(x, [f"{unit}wi"]))
        return self._matrix(inner, [f"{unit}wo"])

    def _activated(self, x: str) -> str:
        return self._node("Relu", [x]) if self._plan.activation == "relu" else super()._activated(x)

    def _attended(self, inputs: list[str]) -> str:
        return self._node("MultiHeadAttention", inputs, num_heads=self._plan.heads, scale=1.0)

    def _bias_of(self, distances: torch.Tensor, index: str, *, both_sides: bool) -> None:
        """Look the bias up, [1, heads, n, keys].

        Args:
            distances: [d] that the rows of the table stand for.
            index: [n, keys] rows of the table.
        """
        name = f"{self._half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        buckets = self._whole.buckets_of(distances, both_sides=both_sides)
        table: Floats = self._stored.read(name)[buckets.numpy()]
        found = self._node("Gather", [self._weight("bias_table", table), index], axis=0)
        across = self._node("Transpose", [found], perm=[2, 0, 1])
        self._node("Unsqueeze", [across, self._constant("first", np.array([0]))], [_BIAS])

    def _apart(self, rows: str, columns: str) -> str:
        """[n, keys] how far each key is behind its query, of their positions [n] and [keys], int64."""
        behind = self._constant("behind", np.array([1]))
        return self._node("Sub", [self._node("Unsqueeze", [rows, behind]), columns])

    def _clipped(self, x: str, low: int, high: int) -> str:
        ends = [self._constant(f"clip_{end}", np.array(end)) for end in (low, high)]
        return self._node("Clip", [x, *ends])

    def _range(self, start: str, end: str) -> str:
        return self._node("Range", [start, end, "one"])

    def _count(self, x: str) -> str:
        """[] number of tokens of [1, n, hidden]."""
        shape = self._node("Shape", [x])
        return self._node("Gather", [shape, self._constant("tokens_axis", np.array(1))], axis=0)


class _EncoderBuilder(_T5Builder):
    _half = "encoder"

    def graph(self) -> Graph:
        self._constant("zero", np.array(0))
        self._constant("one", np.array(1))
        far = self._whole.far
        places = self._range("zero", self._count("hidden"))
        near = self._clipped(self._apart(places, places), -far, far)
        index = self._node("Add", [near, self._constant("far", np.array(far))])
        self._bias_of(-torch.arange(-far, far + 1), index, both_sides=True)
        states = self._layers("hidden")
        for number in range(self._whole.decoder.layers):
            for kind in ("key", "value"):
                self._crossed(states, number, kind)
        inputs = [helper.make_tensor_value_info("hidden", _FLOATS, [1, "n", self._plan.hidden])]
        return self._made(inputs, _crossed_infos(self._whole))

    def _crossed(self, states: str, number: int, kind: str) -> None:
        """Keys or values of a decoder layer's cross-attention, head by head."""
        plan = self._plan
        flat = self._matrix(states, [f"decoder.block.{number}.layer.1.EncDecAttention.{kind[0]}"])
        name = f"crossed_{kind}_{number}"
        heads = self._constant(f"{name}.heads", np.array([0, 0, plan.heads, plan.head_dim]))
        apart = self._node("Reshape", [flat, heads])
        self._node("Transpose", [apart], [name], perm=[0, 2, 1, 3])

    def _blocks(self, number: int) -> list[Any]:
        return [self._self_attention, self._feed_forward]

    def _self_attention(self, x: str, prefix: str) -> str:
        unit = f"{prefix}SelfAttention."
        three = [self._matrix(x, [f"{unit}{name}"]) for name in "qkv"]
        return self._matrix(self._attended([*three, "", "", _BIAS]), [f"{unit}o"])


class _DecoderBuilder(_T5Builder):
    _half = "decoder"

    def graph(self) -> Graph:
        self._constant("zero", np.array(0))
        self._constant("one", np.array(1))
        total = self._node("Cast", ["total"], to=TensorProto.INT64)
        first = self._node("Sub", [total, self._count("hidden")])
        apart = self._apart(self._range(first, total), self._range("zero", total))
        far = self._whole.far
        self._bias_of(-torch.arange(far + 1), self._clipped(apart, 0, far), both_sides=False)
        return super().graph()

    def _blocks(self, number: int) -> list[Any]:
        return [
            lambda x, prefix: self._self_attention(x, prefix, number),
            lambda x, prefix: self._cross_attention(x, prefix, number),
            self._feed_forward,
        ]

    def _self_attention(self, x: str, prefix: str, number: int) -> str:
        unit, heads = f"{prefix}SelfAttention.", self._plan.heads
        found = self._node(
            "GroupQueryAttention",
            [
                *(self._matrix(x, [f"{unit}{name}" for name in "qkv"]), "", ""),
                *(f"key_{number}", f"value_{number}", "seen", "total", "", "", "", _BIAS),
            ],
            [f"{unit}out", f"new_key_{number}", f"new_value_{number}"],
            num_heads=heads,
            kv_num_heads=heads,
            scale=1.0,
        )
        return self._matrix(found, [f"{unit}o"])

    def _cross_attention(self, x: str, prefix: str, number: int) -> str:
        unit = f"{prefix}EncDecAttention."
        inputs = [self._matrix(x, [f"{unit}q"]), f"crossed_key_{number}", f"crossed_value_{number}"]
        return self._matrix(self._attended(inputs), [f"{unit}o"])

    def _signature(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = super()._signature()
        kept = [each for each in inputs if each.name not in ("cos", "sin")]
        return kept + _crossed_infos(self._whole), [each for each in outputs if each.name != "features"]


def _crossed_infos(plan: T5Plan) -> list[Any]:
    shape: list[str | int | None] = [1, plan.decoder.heads, "source", plan.decoder.head_dim]
    names = crossed_names(plan.decoder.layers)
    return [helper.make_tensor_value_info(name, _FLOATS, shape) for name in names]

"""A decoder-only model as an ONNX graph of ONNX Runtime's fused operators.

Grouped-query attention holds rotary embedding, the append to the cache and the mask; a skip norm holds
the addition before it: 11 operators a layer. Embeddings are looked up outside, so that a tied matrix is
in memory once, as the head. Weights are handed to the session beside the graph and are in no file.

That operator reads the cache once for every row. A few rows over a long cache, and rows that are a tree,
take two matrix products a layer instead, which read it once for all rows: see ``Ways``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from spsbench.base.arrays import Ints, Singles
from spsbench.models.blueprint import Blueprint
from spsbench.models.checkpoint import StoredWeights, in_own_pages

BLOCK = 32
"""Neighbours in a row that share a scale."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [out, in]: an entry is (code - 2^(bits-1)) scale + offset of its block."""

    # [out, blocks, bytes]; of 4 bits two share a byte, the first in its lower half
    codes: npt.NDArray[np.uint8]
    scales: Singles  # [out, blocks]
    offsets: Singles | None = None  # [out, blocks]; None where every one is 0


def rounded(weight: Singles, bits: int) -> Rounded:
    """Round a matrix to 8 or 4 bits so that nothing is lost of what ggml has rounded.

    8 bits are 255 values symmetric about 0, as Q8_0 has them, 4 are 16 from a block's smallest to its
    largest, as Q4_1. The last block is filled up with its own last entry.
    """
    assert bits in (8, 4)
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % BLOCK)), mode="edge")
    blocks: Singles = padded.reshape(len(weight), -1, BLOCK)
    low = blocks.min(-1, keepdims=True)
    span = np.abs(blocks).max(-1, keepdims=True) if bits == 8 else blocks.max(-1, keepdims=True) - low
    scales = span / np.float32(127 if bits == 8 else 15)
    divisor = np.where(scales > 0, scales, np.float32(1.0))
    if bits == 8:
        return Rounded((np.rint(blocks / divisor) + 128).astype(np.uint8), scales[..., 0])
    codes = np.rint((blocks - low) / divisor).astype(np.uint8)
    packed = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return Rounded(packed, scales[..., 0], (low + 8 * scales)[..., 0])


def block_sums(width: int) -> Singles:
    """[width, blocks] the matrix that adds up each block's entries, by which offsets are multiplied."""
    columns = np.arange(-(-width // BLOCK))
    matrix: Singles = (np.arange(width)[:, None] // BLOCK == columns).astype(np.float32)
    return matrix


Weights = dict[str, npt.NDArray[Any]]
Ways = Literal["fused", "dense", "both"]
"""How attention is computed: by the fused operator, by matrix products, or as an input says, forward by
forward. Of both, the weights are in memory once."""

_MICROSOFT = "com.microsoft"
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
IR = 10
FEATURES = "features"
"""The output with the states of all n tokens after the final norm, which the head multiplies."""


def state_name(state: int) -> str:
    """Return the output with the states of all n tokens after so many layers; see ``causal_lm.States``."""
    return f"state_{state}"


# The runtime multiplies rounded weights with activations that are rounded to 8 bits, row by row.
_INTEGER_PRODUCTS = 4


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph and its weights.

    Inputs: ``hidden`` [b, n, hidden], ``rows`` [m] (which of the n are wanted), ``seen`` [b] (cached tokens
    + n - 1), ``total`` [] (the most cached tokens + n), ``cos`` and ``sin`` [slots, head_dim / 2], and per
    layer ``key_i`` and ``value_i`` [b, kv_heads, slots, head_dim]. Outputs: ``logits`` [b, m, V],
    ``new_key_i`` and ``new_value_i``, to be bound to the same memory as their inputs, and ``features``
    [b, n, hidden], which costs nothing where it is not bound; ``state_k`` [b, n, hidden] of the states that
    were asked for. With several sequences (b > 1) the runtime
    takes n = 1 alone.

    A graph of B sequences takes more: ``hidden`` [1, B n, hidden] and ``rows`` go through them sequence after
    sequence, and ``seen_b`` [1], ``total_b``, ``key_i_b``, ``value_i_b`` and their outputs are of one each.

    Dense attention, of one sequence, takes ``positions`` [n, 1], ``places`` [n, kv_heads, 1, 3] (0, the head
    and the slot that a key is written to) and ``bias`` [n group, slots] (0 or minus infinity, added to the
    scores; a row for each of the heads that share keys) in place of ``seen`` and ``total``, and with sliding
    windows ``near``, the bias of those layers. A graph of both ways takes all of them, those of the way not
    taken with any length, and ``dense`` [], which way that is.
    """

    model: ModelProto
    weights: Weights


def build_graph(
    blueprint: Blueprint,
    stored: StoredWeights,
    bits: int | None = None,
    batch: int | None = None,
    ways: Ways = "fused",
    states: Sequence[int] = (),
) -> Graph:
    """Build the graph of a model, for B sequences with fused attention if ``batch`` is given.

    8 or 4 bits round matrices, see ``rounded``. With 4 the head has 8: its errors are the logits'.

    Args:
        states: after how many layers the residual stream is an output too.
    """
    return Builder(blueprint, stored, bits, batch, ways, states).graph()


def external(name: str, array: npt.NDArray[Any]) -> TensorProto:
    """Return a weight's name, type and shape; the session is given its memory."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    stub = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
    stub.external_data.add(key="location", value="none")
    return stub


class Builder:
    """Writes a graph operator by operator; see ``build_graph`` for the arguments."""

    def __init__(
        self,
        blueprint: Blueprint,
        stored: StoredWeights,
        bits: int | None,
        batch: int | None = None,
        ways: Ways = "fused",
        states: Sequence[int] = (),
    ) -> None:
        self._shown = states
        self._plan = blueprint
        self._stored = stored
        self._bits = bits
        self._ways = ways
        self._sequences = [""] if batch is None else [f"_{number}" for number in range(batch)]
        self._shapes = dict(blueprint.shapes)
        self._width = blueprint.hidden
        self._nodes: list[Any] = []
        self._numbers = itertools.count()
        self._constants: dict[str, TensorProto] = {}
        self._weights: Weights = {}
        self._summed: dict[str, str] = {}

    def graph(self) -> Graph:
        self._score(self._final_states("hidden"))
        return self._made(*self._signature())

    def _final_states(self, state: str) -> str:
        """Of all tokens, after the layers and the final norm."""
        plan, added = self._plan, ""
        for number in range(plan.layers):
            prefix = f"model.layers.{number}."
            first, second = (f"{prefix}{name}.weight" for name in plan.family.norm)
            self._show(number, state, added)
            state, added = self._block(state, added, first, lambda x, i=number: self._attention(x, i))
            state, added = self._block(state, added, second, lambda x, p=prefix: self._feed_forward(x, p))
        self._show(plan.layers, state, added)
        return self._normed(state, added, "model.norm.weight", FEATURES)[1]

    def _show(self, layers: int, state: str, added: str) -> None:
        """Make the residual stream after so many layers an output, where it is one."""
        if layers in self._shown:
            kind, parts = ("Add", [state, added]) if added else ("Identity", [state])
            self._node(kind, parts, [state_name(layers)])

    def _score(self, states: str) -> None:
        wanted = self._node("Gather", [states, "rows"], axis=1)
        self._matrix(wanted, [self._head()], self._plan.logit_scale, out="logits")

    def _made(self, inputs: list[Any], outputs: list[Any]) -> Graph:
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, self._initializers())
        return Graph(helper.make_model(graph, opset_imports=OPSETS, ir_version=IR), self._weights)

    def _block(self, state: str, added: str, norm: str, compute: Any) -> tuple[str, str]:
        """(The residual stream before this block, what the block adds to it)."""
        if self._plan.family.norms_after:
            state = self._node("Add", [state, added]) if added else state
            return state, self._norm(compute(state), norm)
        state, normed = self._normed(state, added, norm)
        return state, compute(normed)

    def _normed(self, state: str, added: str, norm: str, out: str = "") -> tuple[str, str]:
        """(state + added, its norm)."""
        if not added:
            return state, self._norm(state, norm)
        total = f"{norm}.sum"
        normed = out or f"{norm}.out"
        self._node(
            "SkipSimplifiedLayerNormalization",
            [state, added, self._norm_weight(norm)],
            [normed, "", "", total],
            epsilon=self._plan.epsilon,
        )
        return total, normed

    def _norm(self, x: str, name: str) -> str:
        return self._node(
            "SimplifiedLayerNormalization",
            [x, self._norm_weight(name)],
            axis=-1,
            epsilon=self._plan.epsilon,
            stash_type=1,
        )

    def _norm_weight(self, name: str) -> str:
        return self._weight(name, self._stored.read(name) + np.float32(self._plan.family.norm_offset))

    def _attention(self, x: str, number: int) -> str:
        prefix = f"model.layers.{number}.self_attn."
        states = self._queries_keys_values(x, prefix)
        if self._sequences == [""]:
            attended = self._over_cache(states, number, "")
        else:
            apart = zip(*(self._split(state) for state in states), strict=True)
            parts = [
                self._over_cache(part, number, name)
                for part, name in zip(apart, self._sequences, strict=True)
            ]
            attended = self._node("Concat", parts, axis=1)
        return self._matrix(attended, [f"{prefix}o_proj"], self._plan.residual_scale)

    def _split(self, state: str) -> list[str]:
        """Split a state into those of each sequence; an absent input is absent for all."""
        if not state:
            return [""] * len(self._sequences)
        outputs = [f"{state}{name}" for name in self._sequences]
        self._node("Split", [state], outputs, axis=1, num_outputs=len(outputs))
        return outputs

    def _over_cache(self, states: Sequence[str], number: int, sequence: str) -> str:
        """What a layer's queries read over a sequence's cache."""
        key, value = f"key_{number}{sequence}", f"value_{number}{sequence}"
        outputs = [f"model.layers.{number}.self_attn.out{sequence}", f"new_{key}", f"new_{value}"]
        if self._ways == "both":
            branches = {
                f"{side}_branch": self._branch(way, states, number, outputs)
                for side, way in (("then", self._dense_attention), ("else", self._fused_attention))
            }
            self._node("If", ["dense"], outputs, **branches)
        elif self._ways == "dense":
            self._dense_attention(states, number, outputs)
        else:
            self._fused_attention(states, number, outputs, sequence)
        return outputs[0]

    def _branch(
        self, way: Callable[..., None], states: Sequence[str], number: int, outputs: Sequence[str]
    ) -> Any:
        """One way of attention as a graph of its own, whose outputs become the outer graph's."""
        outside, self._nodes = self._nodes, []
        branch_outputs = [f"{way.__name__}.{name}" for name in outputs]
        way(states, number, branch_outputs)
        plan = self._plan
        value = helper.make_tensor_value_info
        floats = TensorProto.FLOAT
        slots: list[str | int | None] = ["b", plan.kv_heads, "slots", plan.head_dim]
        infos = [value(branch_outputs[0], floats, ["b", "n", plan.heads * plan.head_dim])]
        infos += [value(name, floats, slots) for name in branch_outputs[1:]]
        graph = helper.make_graph(self._nodes, branch_outputs[0], [], infos)
        self._nodes = outside
        return graph

    def _fused_attention(
        self, states: Sequence[str], number: int, outputs: list[str], sequence: str = ""
    ) -> None:
        """Compute attention by the runtime's fused operator, over the cache of a sequence."""
        plan = self._plan
        window = self._plan.windows[number]
        caches = [f"{kind}_{number}{sequence}" for kind in ("key", "value")]
        self._node(
            "GroupQueryAttention",
            [*states, *caches, f"seen{sequence}", f"total{sequence}", "cos", "sin"],
            outputs,
            num_heads=plan.heads,
            kv_num_heads=plan.kv_heads,
            scale=plan.scale,
            do_rotary=int(plan.rotates[number]),
            local_window_size=window if window else -1,
        )

    def _dense_attention(self, states: Sequence[str], number: int, outputs: list[str]) -> None:
        """Compute attention by two products for each head of keys, with those of all rows and heads that
        share it.

        Keys are the left factor, so that they are streamed as they lie and the queries are packed.
        """
        plan = self._plan
        width, shared = plan.head_dim, plan.kv_heads
        both, groups = plan.heads + shared, plan.heads // shared
        joined = self._node("Concat", [*states], axis=-1) if states[1] else states[0]
        parts = self._reshaped(joined, -1, both + shared, 1, width)  # every token as a sequence of its own
        turned, values = self._split_heads(parts, both, shared)
        if plan.rotates[number]:
            turned = self._node("RotaryEmbedding", [turned, "positions", "cos", "sin"])
        queries, keys = self._split_heads(turned, plan.heads, shared)
        self._node("ScatterND", [f"key_{number}", "places", keys], [outputs[1]])
        self._node("ScatterND", [f"value_{number}", "places", values], [outputs[2]])
        queries = self._swapped(self._reshaped(queries, -1, shared, groups * width))
        queries = self._reshaped(queries, 1, shared, -1, width)
        scores = self._node("FusedMatMul", [outputs[1], queries], transB=1, alpha=plan.scale)
        scores = self._node("Transpose", [scores], perm=[0, 1, 3, 2])
        scores = self._node("Add", [scores, "near" if plan.windows[number] else "bias"])
        attended = self._node("MatMul", [self._node("Softmax", [scores], axis=-1), outputs[2]])
        rows = self._swapped(self._reshaped(attended, shared, -1, groups * width))
        self._reshaped(rows, 1, -1, plan.heads * width, out=outputs[0])

    def _reshaped(self, x: str, *shape: int, out: str = "") -> str:
        wanted = self._constant(f"shape_{'_'.join(map(str, shape))}", np.array(shape))
        return self._node("Reshape", [x, wanted], [out] if out else None)

    def _split_heads(self, x: str, *heads: int) -> list[str]:
        """Split x into parts [n, heads, 1, width], one for each number of heads."""
        sizes = self._constant(f"sizes_{'_'.join(map(str, heads))}", np.array(heads))
        outputs = [f"{x}.{place}" for place in range(len(heads))]
        self._node("Split", [x, sizes], outputs, axis=1)
        return outputs

    def _swapped(self, x: str) -> str:
        return self._node("Transpose", [x], perm=[1, 0, 2])

    def _queries_keys_values(self, x: str, prefix: str) -> list[str]:
        """One product, or three where queries and keys are normed."""
        plan = self._plan
        if plan.family.fused:
            return [self._matrix(x, [f"{prefix}qkv_proj"]), "", ""]
        names = [f"{prefix}{name}_proj" for name in "qkv"]
        if not plan.family.query_norm:
            return [self._matrix(x, names), "", ""]
        queries, keys, values = (self._matrix(x, [name]) for name in names)
        return [
            self._query_norm(queries, f"{prefix}q_norm.weight", plan.heads),
            self._query_norm(keys, f"{prefix}k_norm.weight", plan.kv_heads),
            values,
        ]

    def _query_norm(self, x: str, name: str, heads: int) -> str:
        if self._plan.family.query_norm == "whole":
            return self._norm(x, name)
        width = self._plan.head_dim
        apart = self._node("Reshape", [x, self._constant(f"{name}.apart", np.array([0, 0, heads, width]))])
        whole = self._constant(f"{name}.whole", np.array([0, 0, heads * width]))
        return self._node("Reshape", [self._norm(apart, name), whole])

    def _feed_forward(self, x: str, prefix: str) -> str:
        """What a layer's MLP adds to the residual stream."""
        plan, unit = self._plan, f"{prefix}mlp."
        down = f"{unit}down_proj"
        if not plan.family.gated:
            return self._matrix(
                self._activated(self._matrix(x, [f"{unit}up_proj"])), [down], plan.residual_scale
            )
        if plan.family.fused or self._bits:
            # Rounded products are short: two of them take longer than one that is split.
            names = ("gate_up",) if plan.family.fused else ("gate", "up")
            both = self._matrix(x, [f"{unit}{name}_proj" for name in names])
            gate, up = f"{unit}gate", f"{unit}up"
            self._node("Split", [both], [gate, up], axis=-1, num_outputs=2)
        else:
            gate, up = (self._matrix(x, [f"{unit}{name}_proj"]) for name in ("gate", "up"))
        return self._matrix(self._node("Mul", [self._activated(gate), up]), [down], plan.residual_scale)

    def _activated(self, x: str) -> str:
        if self._plan.activation == "silu":
            return self._node("QuickGelu", [x], alpha=1.0)  # x sigmoid(x)
        if self._plan.activation == "relu2":
            positive = self._node("Relu", [x])
            return self._node("Mul", [positive, positive])
        return self._node("Gelu", [x], approximate="tanh")

    def _head(self) -> str:
        return "lm_head" if "lm_head.weight" in self._stored else "model.embed_tokens"

    def _matrix(self, x: str, names: Sequence[str], scale: float = 1.0, out: str = "") -> str:
        """x W^T + b of linear layers with one input, joined."""
        weight = self._joined_weights(names, "weight", scale)
        has_bias = f"{names[0]}.bias" in self._stored
        outputs = [out] if out and not has_bias else None
        product = (
            self._rounded_product(x, names[0], weight, outputs)
            if self._bits
            else self._plain(x, names[0], weight, outputs)
        )
        if not has_bias:
            return product
        bias = self._weight(f"{names[0]}.bias", self._joined_weights(names, "bias", scale))
        return self._node("Add", [product, bias], [out] if out else None)

    def _joined_weights(self, names: Sequence[str], part: str, scale: float) -> Singles:
        tensors = [self._stored.read(f"{name}.{part}") for name in names]
        for name, tensor in zip(names, tensors, strict=True):
            wanted = self._shapes[name.rpartition(".")[2]][: tensor.ndim]
            if tensor.shape != wanted:
                raise ValueError(f"{name}.{part} has the shape {tensor.shape}, not {wanted}")
        joined = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        return joined if scale == 1.0 else joined * np.float32(scale)

    def _plain(self, x: str, name: str, weight: Singles, outputs: list[str] | None) -> str:
        return self._node("MatMul", [x, self._weight(f"{name}.weight", weight.T)], outputs)

    def _rounded_product(self, x: str, name: str, weight: Singles, outputs: list[str] | None) -> str:
        """x W^T of a matrix rounded to 8 or 4 bits."""
        bits = 8 if name == self._head() or self._bits is None else self._bits
        codes = rounded(weight, bits)
        product = self._node(
            "MatMulNBits",
            [x, self._weight(f"{name}.codes", codes.codes), self._weight(f"{name}.scales", codes.scales)],
            outputs if codes.offsets is None else None,
            K=weight.shape[1],
            N=weight.shape[0],
            bits=bits,
            block_size=BLOCK,
            accuracy_level=_INTEGER_PRODUCTS,
        )
        if codes.offsets is None:
            return product
        # The runtime takes whole numbers alone as offsets: ours are multiplied apart, with sums over blocks.
        added = self._node(
            "MatMul", [self._block_sums(x, weight.shape[1]), self._weight(f"{name}.offsets", codes.offsets.T)]
        )
        return self._node("Add", [product, added], outputs)

    def _block_sums(self, x: str, width: int) -> str:
        """[1, n, blocks] sums over blocks of x."""
        if x not in self._summed:
            matrix = f"sums_{width}"
            if matrix not in self._weights:
                self._weight(matrix, block_sums(width))
            self._summed[x] = self._node("MatMul", [x, matrix])
        return self._summed[x]

    def _weight(self, name: str, array: npt.NDArray[Any]) -> str:
        # A contiguous copy, which is freed once the session has packed it.
        self._weights[name] = in_own_pages(array.shape, array.dtype)
        self._weights[name][...] = array
        return name

    def _constant(self, name: str, array: Ints) -> str:
        self._constants[name] = helper.make_tensor(name, TensorProto.INT64, array.shape, array.tolist())
        return name

    def _node(self, kind: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        outputs = outputs or [f"{kind}_{next(self._numbers)}"]
        domain = _MICROSOFT if kind in _FUSED else ""
        self._nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def _initializers(self) -> list[TensorProto]:
        """The weights' names, types and shapes; the session is given their memory."""
        return [*(external(name, array) for name, array in self._weights.items()), *self._constants.values()]

    def _signature(self) -> tuple[list[Any], list[Any]]:
        """(Inputs, outputs) of the graph with their types and shapes."""
        plan = self._plan
        value = helper.make_tensor_value_info
        sequences = self._sequences
        floats = TensorProto.FLOAT
        longs = TensorProto.INT64
        ints = TensorProto.INT32
        several: str | int = "b" if sequences == [""] else 1
        slots: list[str | int | None] = [several, plan.kv_heads, "slots", plan.head_dim]
        layers = [(number, kind) for number in range(plan.layers) for kind in ("key", "value")]
        caches = [f"{kind}_{number}{name}" for number, kind in layers for name in sequences]
        inputs = [
            value("hidden", floats, [several, "n", self._width]),
            value("rows", longs, ["wanted"]),
            value("cos", floats, ["slots", plan.head_dim // 2]),
            value("sin", floats, ["slots", plan.head_dim // 2]),
            *(value(f"seen{name}", ints, [several]) for name in sequences),
            *(value(f"total{name}", ints, []) for name in sequences),
            *(value(name, floats, slots) for name in caches),
        ]
        if self._ways != "fused":
            inputs = [each for each in inputs if self._ways == "both" or each.name not in ("seen", "total")]
            inputs += [
                value("positions", longs, ["new", 1]),
                value("places", longs, ["new", plan.kv_heads, 1, 3]),
                value("bias", floats, ["queries", "columns"]),
            ]
            if any(plan.windows):
                inputs.append(value("near", floats, ["queries", "columns"]))
            if self._ways == "both":
                inputs.append(value("dense", TensorProto.BOOL, []))
        outputs = [
            value("logits", floats, [several, "wanted", plan.vocab_size]),
            value(FEATURES, floats, [several, "n", plan.hidden]),
            *(value(state_name(state), floats, [several, "n", plan.hidden]) for state in self._shown),
            *(value(f"new_{name}", floats, slots) for name in caches),
        ]
        return inputs, outputs


_FUSED = frozenset(
    {
        "GroupQueryAttention",
        "MultiHeadAttention",
        "SkipSimplifiedLayerNormalization",
        "QuickGelu",
        "MatMulNBits",
        "RotaryEmbedding",
        "FusedMatMul",
    }
)

"""Trained heads as separate ONNX graphs, with rows of the target's output head in them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import TensorProto, helper
from torch import Tensor

from spsbench.models.blueprint import Blueprint, blueprint_of
from spsbench.models.checkpoint import EMBEDDING, Floats, StoredWeights
from spsbench.models.onnx_forward import OnnxForward, value_of
from spsbench.models.onnx_graph import Builder, Graph
from spsbench.models.onnx_lm import OnnxLM, session_of
from spsbench.models.shared_weights import SharedWeights
from spsbench.models.trained import TrainedDraft, layer_config
from spsbench.models.vocabulary import VocabularyRows


class OnnxChain:
    """See ``Chain``."""

    def __init__(self, draft: TrainedDraft, target: OnnxLM, bits: int | None) -> None:
        ids = draft.ids_below(target.vocab_size)
        plan = _plan_of(blueprint_of(layer_config(draft)), target, ids)
        self._plan, self._table = plan, target.stored
        graph = _EagleBuilder(plan, SharedWeights(draft, target.stored, ids), bits).graph()
        self._session, self._weight_bytes = session_of(graph, target.threads)
        self._forward = self._new_forward()
        self._spread = VocabularyRows(torch.from_numpy(ids), target.vocab_size)
        self._length = 0

    @property
    def length(self) -> int:
        """Number of cached entries."""
        return self._length

    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Chain.extend``."""
        n, width = len(tokens), self._plan.hidden

        def embed(out: Floats) -> None:
            self._table.rows(EMBEDDING, tokens.numpy(), out[:, :width])
            out[:, width:] = features.numpy()

        logits = self._forward(embed, self._length, n, 1)
        self._length += n
        assert self._forward.features is not None
        return self._spread(logits), self._forward.features[-1:]

    def rollback(self, length: int) -> None:
        """See ``Chain.rollback``."""
        self._length = min(self._length, length)

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        return self._weight_bytes

    def fresh(self) -> OnnxChain:
        """The same weights with its own cache."""
        other = copy.copy(self)
        other._forward, other._length = other._new_forward(), 0
        return other

    def _new_forward(self) -> OnnxForward:
        return OnnxForward(self._session, self._plan, width=2 * self._plan.hidden, features=True)


class OnnxHeads:
    """See ``Heads``; the arguments are those of ``OnnxChain``, of a draft of the kind ``medusa``."""

    def __init__(self, draft: TrainedDraft, target: OnnxLM, bits: int | None) -> None:
        ids = draft.ids_below(target.vocab_size)
        self.count = draft.heads
        self._plan = _plan_of(replace(target.plan, layers=0, activation="silu"), target, ids)
        stored = SharedWeights(draft, target.stored, ids)
        graph = _MedusaBuilder(self._plan, stored, bits, draft.heads).graph()
        self._session, self._weight_bytes = session_of(graph, target.threads)
        self._spread = VocabularyRows(torch.from_numpy(ids), target.vocab_size)
        self._feature = np.zeros((1, 1, self._plan.hidden), np.float32)
        self._bound: dict[int, tuple[Any, Tensor]] = {}

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        """See ``Heads``."""
        binding, logits = self._bound.get(places) or self._bind(places)
        self._feature[0] = feature.numpy()
        self._session.run_with_iobinding(binding)
        return self._spread(logits)

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        return self._weight_bytes

    def _bind(self, places: int) -> tuple[Any, Tensor]:
        binding = self._session.io_binding()
        logits = np.zeros((1, places, self._plan.vocab_size), np.float32)
        binding.bind_ortvalue_input("hidden", value_of(self._feature))
        binding.bind_ortvalue_input("places", value_of(np.array([places])))
        binding.bind_ortvalue_output("logits", value_of(logits))
        self._bound[places] = binding, torch.from_numpy(logits[0])
        return self._bound[places]


def _plan_of(own: Blueprint, target: OnnxLM, ids: npt.NDArray[np.int64]) -> Blueprint:
    """A head's blueprint: its own layers under some rows of the target's output head."""
    if own.hidden != target.plan.hidden:
        raise ValueError(f"its layer is {own.hidden} wide, the target's states are {target.plan.hidden}")
    return replace(own, vocab_size=len(ids), logit_scale=target.plan.logit_scale)


class _EagleBuilder(Builder):
    """The layers after a product that takes an embedding and a feature to the width of one."""

    def __init__(self, blueprint: Blueprint, stored: StoredWeights, bits: int | None) -> None:
        super().__init__(blueprint, stored, bits)
        self._width = 2 * blueprint.hidden
        self._shapes["fc"] = (blueprint.hidden, self._width)

    def graph(self) -> Graph:
        self._score(self._layers(self._matrix("hidden", ["fc"])))
        return self._made(*self._signature())


class _MedusaBuilder(Builder):
    """Inputs ``hidden`` [1, 1, hidden] and ``places`` [1]; output ``logits`` [1, places, V]."""

    def __init__(self, blueprint: Blueprint, stored: StoredWeights, bits: int | None, heads: int) -> None:
        super().__init__(blueprint, stored, bits)
        self._heads = heads
        self._shapes |= {str(number): (blueprint.hidden, blueprint.hidden) for number in range(heads)}

    def graph(self) -> Graph:
        width = self._plan.hidden
        # All heads are one product; the output head, which is larger, is asked for the wanted ones alone.
        joined = self._matrix("hidden", [f"heads.{number}" for number in range(self._heads)])
        apart = self._constant("apart", np.array([1, self._heads, width]))
        added = self._node("Reshape", [self._activated(joined), apart])
        self._constant("first", np.array([0]))
        self._constant("axis", np.array([1]))
        wanted = self._node("Slice", [added, "first", "places", "axis"])
        self._matrix(self._node("Add", [wanted, "hidden"]), [self._head()], self._plan.logit_scale, "logits")
        value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
        return self._made(
            [value("hidden", floats, [1, 1, width]), value("places", TensorProto.INT64, [1])],
            [value("logits", floats, [1, "wanted", self._plan.vocab_size])],
        )

"""Trained heads that read a target's hidden states: what they can do, and how they are loaded."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from spsbench.base.arrays import Ints, Singles
from spsbench.base.errors import UnavailableError, UsageError, first_line
from spsbench.models.beam_lm import additive
from spsbench.models.blueprint import Blueprint, NotCovered, blueprint_of
from spsbench.models.body import head_of
from spsbench.models.causal_lm import LAST, CausalLM, States, VocabularyRows, text_config
from spsbench.models.checkpoint import EMBEDDING, HEAD, StoredWeights
from spsbench.models.kinds import AUTHORS, EAGLE, EAGLE3, MEDUSA, PEAGLE, POST
from spsbench.models.live_tree import Branches
from spsbench.models.onednn import Product
from spsbench.models.onnx_graph import Builder, Graph
from spsbench.models.onnx_lm import OnnxForward, OnnxLM, bind, run_bound, session_of
from spsbench.models.packed import fitted, stored_weight
from spsbench.models.rewind import RewindCache
from spsbench.models.speculators import FC, MASK_HIDDEN, OWN_EMBEDDING, WHOLE_NORM, eagle3_body, norm_of_state
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import SharedWeights, TrainedDraft, layer_config


class HeadChain(ABC):
    """An EAGLE head with its own KV cache: from a token and the feature before it, the next feature.

    Entry t reads the embedding of token t+1 and feature t, and predicts feature t+1: its logits are of token
    t+2.

    Attributes:
        reads: which states of the target its features are.
    """

    reads: States = LAST

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of cached entries."""

    @abstractmethod
    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Append entries.

        Args:
            tokens: [n] int64, n >= 1.
            features: [n, hidden] of the tokens before them.

        Returns:
            [1, V] logits, minus infinity outside of the head's vocabulary, and [1, hidden] the feature
            that the last entry predicts. The next call may overwrite both.
        """

    @abstractmethod
    def branch(self, tokens: Tensor, features: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        """Append the nodes of a tree; return [n, V] logits and [n, hidden] features, one row a node."""

    def combined(self, features: Tensor) -> Tensor:
        """[n, hidden] what entries read of the target's features; later entries read predicted ones."""
        return features

    @abstractmethod
    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` entries; no effect if fewer are cached."""

    @abstractmethod
    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""

    @abstractmethod
    def _clear_cache(self) -> None:
        """Begin a new cache."""

    def fresh(self) -> Self:
        """Return the same weights with an own cache."""
        other = copy.copy(self)
        other._clear_cache()
        return other


class Heads(Protocol):
    """Medusa heads: from one feature the tokens at several places after it."""

    count: int

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        """[places, V] logits of the first heads from a feature [1, hidden], minus infinity outside of the
        head's vocabulary. The next call may overwrite them."""
        ...

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        ...


class CachedChain(HeadChain):
    """A chain by torch, whose entries are in a cache of transformers' layers."""

    _target: CausalLM

    def _clear_cache(self) -> None:
        self._cache = RewindCache()

    @property
    def length(self) -> int:
        return self._cache.length

    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        return self._read_of(self._appended(tokens, features)[-1:])

    def branch(self, tokens: Tensor, features: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        positions = torch.from_numpy(branches.positions[-len(tokens) :]).to(tokens.device)
        prefix = self.length + len(tokens) - len(branches.positions)
        placed = {
            "position_ids": positions.unsqueeze(0),
            "attention_mask": additive(branches, prefix, self._target),
        }
        return self._read_of(self._appended(tokens, features, **placed))

    @abstractmethod
    def _appended(self, tokens: Tensor, features: Tensor, **placed: Tensor) -> Tensor:
        """[n, hidden] states of entries that are appended, with arguments of their attention."""

    @abstractmethod
    def _read_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[n, V] logits and [n, hidden] predicted features of states [n, hidden]."""

    def rollback(self, length: int) -> None:
        self._cache.rollback(length)


class TorchChain(CachedChain):
    _norm: nn.Module = nn.Identity()  # between a predicted feature and the output head

    def __init__(self, draft: TrainedDraft, target: TorchLM) -> None:
        self._table = target.model.get_input_embeddings().weight
        width = self._table.shape[1]
        self._fc = Product(_read(draft, "fc.weight", (width, 2 * width), target))
        self._body = _body(draft, target)
        self._score = _OutputHead(draft, target)
        self._target = target
        self._clear_cache()

    def _appended(self, tokens: Tensor, features: Tensor, **placed: Tensor) -> Tensor:
        states = self._inputs(tokens, features).unsqueeze(0)
        inputs = {"inputs_embeds": states, "past_key_values": self._cache, "use_cache": True}
        states_after: Tensor = self._body(**inputs, **placed).last_hidden_state[0]
        return states_after

    def _read_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self._score(self._norm(states)), states

    def _inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self._fc(torch.cat([self._table[tokens], features], dim=-1))

    def forward_bytes(self) -> int:
        layers = sum(part.nbytes for name, part in self._body.named_parameters() if "embed" not in name)
        return int(self._fc.nbytes + layers + self._score.nbytes)


class Eagle3Chain(TorchChain):
    """An EAGLE-3 head in either layout, by torch over either backend: see ``WideLayer``.

    Its features are the target's states beside each other, as they are between layers; ``combined`` has its
    norms and ``fc``.
    """

    def __init__(self, draft: TrainedDraft, target: TorchLM | OnnxLM) -> None:
        self.reads = draft.states_of(target.layers)
        self._stored: StoredWeights | None = None
        if OWN_EMBEDDING in draft.stored:
            own = draft.stored.shape(OWN_EMBEDDING)
            self._table = _read(draft, OWN_EMBEDDING, own, target)
        elif isinstance(target, OnnxLM):
            self._stored = target.stored
        else:
            self._table = target.model.get_input_embeddings().weight
        self._fc = Product(_read(draft, FC, draft.stored.shape(FC), target))
        self._body = eagle3_body(layer_config(draft), draft.convention("residual") == POST, target.dtype)
        names = [name for name in self._body.state_dict() if not name.startswith("embed_tokens")]
        state = {name: _read(draft, name, draft.stored.shape(name), target) for name in names}
        self._body.load_state_dict(state, strict=False)
        self._body = fitted(self._body.to(target.device), 2 * target.embedding_shape[1])
        self._input_norms = self._norms_before_fc(draft, target)
        if draft.kind == PEAGLE or draft.convention("recycle") != POST:
            self._norm, self._body.norm = self._body.norm, nn.Identity()
        self._score = _OutputHead(draft, target)
        self._target = target
        self._clear_cache()

    def _norms_before_fc(self, draft: TrainedDraft, target: CausalLM) -> list[nn.Module]:
        """None, one of all states beside each other, or one of each."""
        names = [WHOLE_NORM] if WHOLE_NORM in draft.stored else []
        names = names or [name for name in map(norm_of_state, range(len(self.reads))) if name in draft.stored]
        norms = []
        for name in names:
            (size,) = draft.stored.shape(name)
            norm = type(self._body.norm)(size, eps=self._body.config.rms_norm_eps)
            norm.weight = nn.Parameter(_read(draft, name, (size,), target), requires_grad=False)
            norms.append(norm)
        return norms

    def combined(self, features: Tensor) -> Tensor:
        features = features.to(self._fc.dtype)
        if self._input_norms:
            parts = features.chunk(len(self._input_norms), -1)
            features = torch.cat(
                [norm(part) for norm, part in zip(self._input_norms, parts, strict=True)], -1
            )
        return self._fc(features)

    def _inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        if self._stored is None:
            return torch.cat([self._table[tokens], features], dim=-1)
        embedded = np.zeros(features.shape, np.float32)
        self._stored.rows(EMBEDDING, tokens.numpy(), embedded)
        return torch.cat([torch.from_numpy(embedded), features], dim=-1)


class PEagleChain(Eagle3Chain):
    """A P-EAGLE head: places whose token is not known yet read a mask token and a learned state instead."""

    def __init__(self, draft: TrainedDraft, target: TorchLM | OnnxLM) -> None:
        super().__init__(draft, target)
        self._mask = torch.tensor([draft.extra["mask_token_id"]], device=target.device)
        hidden = _read(draft, MASK_HIDDEN, draft.stored.shape(MASK_HIDDEN), target)
        self._masked = self.combined(hidden.view(1, -1))

    def ahead(self, tokens: Tensor, features: Tensor, places: int) -> Tensor:
        """Append entries, and score the places after them in the same forward; see ``extend``.

        Returns:
            [places, V] logits of the token after the last one and of those behind that. The places after the
            first are no entries: they are forgotten.
        """
        length = self.length + len(tokens)
        tokens = torch.cat([tokens, self._mask.expand(places - 1)])
        features = torch.cat([features, self._masked.expand(places - 1, -1)])
        states = self._appended(tokens, features)[-places:]
        self.rollback(length)
        return self._score(self._norm(states))


class TorchHeads:
    def __init__(self, draft: TrainedDraft, target: TorchLM) -> None:
        self.count = draft.heads
        width = target.embedding_shape[1]
        names = [f"heads.{number}" for number in range(draft.heads)]
        self._weight = torch.cat([_read(draft, f"{name}.weight", (width, width), target) for name in names])
        self._bias = torch.cat([_read(draft, f"{name}.bias", (width,), target) for name in names])
        self._score = _OutputHead(draft, target)

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        width = places * feature.shape[-1]
        added = silu(linear(feature, self._weight[:width], self._bias[:width]))
        return self._score(feature + added.view(places, -1))

    def forward_bytes(self) -> int:
        return int(self._weight.nbytes + self._bias.nbytes + self._score.nbytes)


class OwnHeads:
    """Medusa heads as their authors write them, each under an output head of its own; by torch."""

    def __init__(self, draft: TrainedDraft, target: TorchLM | OnnxLM) -> None:
        self.count, blocks = draft.heads, int(draft.extra["blocks"])
        width, size = draft.target.hidden, draft.target.vocab_size
        self._used = target.vocab_size
        self._blocks = [
            [
                Product(
                    _read(draft, f"{head}.{block}.linear.weight", (width, width), target),
                    _read(draft, f"{head}.{block}.linear.bias", (width,), target),
                )
                for block in range(blocks)
            ]
            for head in range(self.count)
        ]
        names = [f"{head}.{blocks}.weight" for head in range(self.count)]
        self._heads = [Product(_read(draft, name, (size, width), target)) for name in names]

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        rows = []
        for blocks, head in zip(self._blocks[:places], self._heads[:places], strict=True):
            state = feature.to(head.dtype)
            for block in blocks:
                state = state + silu(block(state))
            rows.append(head(state))
        return torch.cat(rows)[:, : self._used]

    def forward_bytes(self) -> int:
        layers = sum(block.nbytes for blocks in self._blocks for block in blocks)
        return int(layers + sum(head.nbytes for head in self._heads))


class _OutputHead:
    """Some rows of an output head, the target's or its own, and their logits among those of all tokens."""

    nbytes: int
    _product: Callable[[Tensor], Tensor]

    def __init__(self, draft: TrainedDraft, target: Any) -> None:
        size = target.vocab_size
        ids = torch.from_numpy(draft.ids_below(size)).to(target.device)
        self._spread = VocabularyRows(ids, size)
        if draft.kind in (EAGLE3, PEAGLE):
            weight = _read(draft, HEAD, draft.stored.shape(HEAD), target)
            if draft.vocabulary is not None:  # rows in the order of their tokens
                weight = weight[torch.from_numpy(np.argsort(draft.vocabulary)).to(weight.device)]
            self._take(weight[: len(ids)], None)
            self._scale = 1.0
            return
        head = head_of(target.model)
        if len(head.weight) == len(ids):
            self._product, self.nbytes = head, head.weight.nbytes
        else:
            bias = None if getattr(head, "bias", None) is None else head.bias[ids]
            weight = stored_weight(head)
            self._take(weight[:size] if len(ids) == size else weight[ids], bias)
        self._scale = 1.0 / float(getattr(text_config(target.config), "logits_scaling", 1.0))

    def _take(self, weight: Tensor, bias: Tensor | None) -> None:
        self._product = Product(weight, bias)
        self.nbytes = weight.nbytes

    def __call__(self, states: Tensor) -> Tensor:
        logits = self._product(states)
        return self._spread(logits if self._scale == 1.0 else logits * self._scale)


def _read(draft: TrainedDraft, name: str, shape: tuple[int, ...], target: CausalLM) -> Tensor:
    if (there := draft.stored.shape(name)) != shape:
        raise ValueError(f"{name} has the shape {there}, not {shape}")
    return torch.from_numpy(draft.stored.read(name).copy()).to(target.device, target.dtype)


def _require_stored(draft: TrainedDraft, config: Any) -> None:
    """Raise ValueError for layers whose stored matrices have other sizes, before any is allocated."""
    from transformers import AutoModel

    with torch.device("meta"):
        layer = AutoModel.from_config(config).layers[0]
    for name, part in layer.state_dict().items():
        name, due = f"model.layers.0.{name}", tuple(part.shape)
        if (there := draft.stored.shape(name)) != due:
            raise ValueError(f"{name} has the shape {there}, not {due}")


def _body(draft: TrainedDraft, target: CausalLM) -> Any:
    """Build the decoder layers and the final norm, as transformers computes them.

    Raises:
        ValueError: the layers have another width than the target's states.
    """
    from transformers import AutoModel

    config = layer_config(draft)
    # The layers get states, not tokens: one empty row of embedding is enough.
    config.vocab_size, config.pad_token_id = 1, None
    if config.hidden_size != target.embedding_shape[1]:
        raise ValueError(
            f"its layer is {config.hidden_size} wide, the target's states are {target.embedding_shape[1]}"
        )
    _require_stored(draft, config)
    body = AutoModel.from_config(config, dtype=target.dtype)
    state = {
        name: _read(draft, f"model.{name}", tuple(part.shape), target)
        for name, part in body.state_dict().items()
        if not name.startswith("embed_tokens")
    }
    body.load_state_dict(state, strict=False)
    return fitted(body.to(target.device), config.hidden_size)


class OnnxChain(HeadChain):
    def __init__(self, draft: TrainedDraft, target: OnnxLM, bits: int) -> None:
        ids = draft.ids_below(target.vocab_size)
        plan = _blueprint_of(blueprint_of(layer_config(draft)), target, ids)
        self._plan, self._table = plan, target.stored
        graph = _EagleBuilder(plan, SharedWeights(draft, target.stored, ids), bits or None).graph()
        self._session, self._weight_bytes = session_of(graph, target.threads)
        self._spread = VocabularyRows(torch.from_numpy(ids), target.vocab_size)
        self._clear_cache()

    def _clear_cache(self) -> None:
        width = 2 * self._plan.hidden
        self._forward = OnnxForward(
            self._session, self._plan, width=width, states=LAST, wide=lambda: self._session
        )
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        logits, predicted = self._appended(tokens, features, 1)
        return logits, predicted[-1:]

    def branch(self, tokens: Tensor, features: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        return self._appended(tokens, features, len(tokens), branches)

    def _appended(
        self, tokens: Tensor, features: Tensor, last: int, branches: Branches | None = None
    ) -> tuple[Tensor, Tensor]:
        n, width = len(tokens), self._plan.hidden

        def embed(out: Singles) -> None:
            self._table.rows(EMBEDDING, tokens.numpy(), out[:, :width])
            out[:, width:] = features.numpy()

        logits = self._forward(embed, self._length, n, last, branches)
        self._length += n
        return self._spread(logits), self._forward.features[0]

    def rollback(self, length: int) -> None:
        self._length = min(self._length, length)

    def forward_bytes(self) -> int:
        return self._weight_bytes


class OnnxHeads:
    def __init__(self, draft: TrainedDraft, target: OnnxLM, bits: int) -> None:
        ids = draft.ids_below(target.vocab_size)
        self.count = draft.heads
        self._plan = _blueprint_of(replace(target.plan, layers=0, activation="silu"), target, ids)
        stored = SharedWeights(draft, target.stored, ids)
        graph = _MedusaBuilder(self._plan, stored, bits or None, draft.heads).graph()
        self._session, self._weight_bytes = session_of(graph, target.threads)
        self._spread = VocabularyRows(torch.from_numpy(ids), target.vocab_size)
        self._feature = np.zeros((1, 1, self._plan.hidden), np.float32)
        self._bound: dict[int, tuple[Any, Tensor]] = {}

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        binding, logits = self._bound.get(places) or self._bind(places)
        self._feature[0] = feature.numpy()
        run_bound(self._session, binding)
        return self._spread(logits)

    def forward_bytes(self) -> int:
        return self._weight_bytes

    def _bind(self, places: int) -> tuple[Any, Tensor]:
        inputs = {"hidden": self._feature, "places": np.array([places])}
        logits = np.zeros((1, places, self._plan.vocab_size), np.float32)
        binding = bind(self._session, inputs, {}, {"logits": logits})
        self._bound[places] = binding, torch.from_numpy(logits[0])
        return self._bound[places]


def _blueprint_of(own: Blueprint, target: OnnxLM, ids: Ints) -> Blueprint:
    """Of a head: its own layers under some rows of the target's output head."""
    if own.hidden != target.plan.hidden:
        raise ValueError(f"its layer is {own.hidden} wide, the target's states are {target.plan.hidden}")
    return replace(own, vocab_size=len(ids), logit_scale=target.plan.logit_scale)


class _EagleBuilder(Builder):
    """The layers after a product that takes an embedding and a feature to the width of one."""

    def __init__(self, blueprint: Blueprint, stored: StoredWeights, bits: int | None) -> None:
        super().__init__(blueprint, stored, bits, ways="both")
        self._width = 2 * blueprint.hidden
        self._shapes["fc"] = (blueprint.hidden, self._width)

    def graph(self) -> Graph:
        self._score(self._final_states(self._matrix("hidden", ["fc"])))
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


_OVER_TORCH: dict[str, Any] = {
    EAGLE: TorchChain,
    EAGLE3: Eagle3Chain,
    PEAGLE: PEagleChain,
    MEDUSA: TorchHeads,
}
_OVER_ONNX: dict[str, Any] = {EAGLE: OnnxChain, MEDUSA: OnnxHeads}
"""Of those of ``spsbench distill``, which can be rounded; torch computes the others beside such a target."""


def load_chain(draft: TrainedDraft, target: CausalLM, bits: int, flag: str) -> HeadChain:
    """Load an EAGLE head over its target's backend; heads of one target share their weights in memory."""
    assert draft.kind in (EAGLE, EAGLE3, PEAGLE)
    chain: HeadChain = _attached(draft, target, bits, flag)
    return chain.fresh()


def load_heads(draft: TrainedDraft, target: CausalLM, bits: int, flag: str) -> Heads:
    assert draft.kind == MEDUSA
    heads: Heads = _attached(draft, target, bits, flag)
    return heads


def _attached(draft: TrainedDraft, target: CausalLM, bits: int, flag: str) -> Any:
    """Load a trained draft's weights beside its target, over the target's backend."""
    if bits not in (0, 8, 4):
        raise UsageError(f"bits={bits} is not valid.", flag=flag, remedy="Give bits=8 or bits=4, or none.")
    count, hidden = target.embedding_shape
    draft.require_target(hidden, count, target.embedding_fingerprint(), flag)
    draft.require_layers(target.layers, flag)
    key = (str(draft.folder.resolve()), bits, draft.conventions)
    if key in target.attached:
        return target.attached[key]
    is_own = draft.kind == MEDUSA and draft.writer == AUTHORS
    over_onnx = None if is_own or not isinstance(target, OnnxLM) else _OVER_ONNX.get(draft.kind)
    if bits and over_onnx is None:
        raise UsageError(
            f"bits={bits} rounds eagle and medusa heads of spsbench distill over onnxruntime; this is"
            f" {draft.kind} over {target.backend}.",
            flag=flag,
            remedy="Leave it out.",
        )
    try:
        with torch.inference_mode():
            if over_onnx is not None:
                target.attached[key] = over_onnx(draft, target, bits)
            else:
                over_torch: Any = OwnHeads if is_own else _OVER_TORCH[draft.kind]
                target.attached[key] = over_torch(draft, target)
    except NotCovered as reason:
        why = f"{draft.folder} cannot be built over onnxruntime: {reason}."
        raise UsageError(why, flag=flag, remedy="Use --backend torch.") from reason
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, ArithmeticError) as fault:
        missing = isinstance(fault, KeyError)
        reason_of = f"it has no {fault.args[0]}" if missing else first_line(fault)
        why = f"{draft.folder} does not hold the head that it describes: {reason_of}."
        raise UnavailableError(why, flag=flag, remedy="Train it again, or choose another.") from fault
    return target.attached[key]

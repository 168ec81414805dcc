"""Caches of recurrent and hybrid models, rolled back exactly.

A running state has no row for each token that could be forgotten. So the state before every block is kept,
and a rollback into the block puts it back and reads the accepted tokens again (``REPLAY``); or the state
after each token of the block was kept while it was read, and one of them is taken (``PLANES``).

Nothing here writes to a state: a layer gets a new one with every token, so that what was kept before is a
reference and no copy. Kernels that write into the state they are given get a copy of it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from spsbench.models.causal_lm import skeleton, text_config
from spsbench.models.recurrence import LONGEST, in_steps, let_step, limits_steps
from spsbench.models.rewind import RewindCache, RewindIndexedLayer, RewindLayer

LENGTH, PLANES, REPLAY, STEPS = "length", "planes", "replay", "steps"
"""How a cache is rolled back: by forgetting rows; by the state kept after each token of a block; by the state
kept before a block, with the accepted tokens read again; or every block is read token by token, since the
forward cannot read one after a past."""

MOST_MARKS = 16
"""States before the last so many forwards that are kept: a draft model rolls back over all of its loop's.
What lies before them is read again from the beginning."""


class NotCopyable(Exception):
    """A model's state is in something that cannot be kept aside; the message says in what."""


class Kept(Protocol):
    """What one layer, or the model, keeps of the tokens that it has read."""

    def begin(self) -> None:
        """A block will be read."""

    def snapshot(self) -> Any:
        """Return what ``back_to`` needs to be here again."""

    def back_to(self, snapshot: Any) -> None: ...

    def knows(self, kept: int, block: int) -> bool:
        """Whether the state after ``kept`` of the last block's tokens is there."""

    def take(self, length: int, kept: int, block: int) -> None:
        """Go to that state; the sequence then has ``length`` tokens."""

    def clear(self) -> None:
        """Forget all tokens."""

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch."""


class RowsByToken:
    """Of a layer with a row for each token."""

    def __init__(self, layer: RewindLayer) -> None:
        self._layer = layer
        self.clear = partial(layer.rollback, 0)
        self.back_to, self.select = layer.rollback, layer.select

    def begin(self) -> None: ...

    def snapshot(self) -> int:
        return self._layer.used

    def knows(self, kept: int, block: int) -> bool:
        return True

    def take(self, length: int, kept: int, block: int) -> None:
        self._layer.rollback(length)


class _AllRows:
    """Of a cache whose layers, all with a row for each token, are made when they are first written to."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def begin(self) -> None: ...

    def snapshot(self) -> int:
        return max((layer.used for layer in self._held.layers), default=0)

    def back_to(self, snapshot: int) -> None:
        for layer in self._held.layers:
            layer.rollback(snapshot)

    def knows(self, kept: int, block: int) -> bool:
        return True

    def take(self, length: int, kept: int, block: int) -> None:
        self.back_to(length)

    def clear(self) -> None:
        self._held.layers.clear()

    def select(self, rows: Tensor) -> None:
        for layer in self._held.layers:
            layer.select(rows)


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """States of a convolution and of a recurrence, each replaced by the next and never written to."""

    def __init__(self, number_of_states: int = 1) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        self._blocks: dict[int, Tensor] = {}  # a convolution's inputs: its state, and those of the block
        self.stepped: list[list[Tensor]] = []  # the recurrence after each token of the block, by call

    def begin(self) -> None:
        self._blocks.clear()
        self.stepped.clear()

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """Append [1, width, n] inputs; return all that the convolution of these n sees."""
        size = self.conv_kernel_size[state_idx]
        if size is None:
            size = self.conv_kernel_size[state_idx] = conv_kernel_size or conv_states.shape[-1]
            self.device, self.dtype = conv_states.device, conv_states.dtype
            self.is_conv_states_initialized[state_idx] = True
        if not self.has_previous_state[state_idx]:
            self.has_previous_state[state_idx] = True
            whole = pad(conv_states, (max(size - conv_states.shape[-1], 0), 0))
        else:
            whole = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
            self._blocks[state_idx] = whole
        latest = whole[..., whole.shape[-1] - size :]
        # A view would keep the whole of a prompt alive.
        self.conv_states[state_idx] = latest if whole.shape[-1] <= 2 * size + MOST_MARKS else latest.clone()
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Replace the state, in the dtype that it had first."""
        before = self.recurrent_states[state_idx]
        if before is not None and before.dtype != recurrent_states.dtype:
            recurrent_states = recurrent_states.to(before.dtype)
        self.is_recurrent_states_initialized[state_idx] = True
        self.has_previous_state[state_idx] = True
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def own(self, states: dict[int, Tensor | None], state_idx: int) -> Tensor | None:
        """Return a state as a copy that a kernel may write to, which is the state from now on."""
        if not self.has_previous_state[state_idx]:
            return None
        state = states[state_idx]
        states[state_idx] = None if state is None else state.clone()
        return states[state_idx]

    def snapshot(self) -> tuple[dict[int, Any], dict[int, Any], dict[int, bool]]:
        return dict(self.conv_states), dict(self.recurrent_states), dict(self.has_previous_state)

    def back_to(self, snapshot: tuple[dict[int, Any], dict[int, Any], dict[int, bool]]) -> None:
        conv, recurrent, has = snapshot
        self.conv_states, self.recurrent_states = dict(conv), dict(recurrent)
        self.has_previous_state = dict(has)

    def knows(self, kept: int, block: int) -> bool:
        states = self.recurrent_states.values()
        recurrences = sum(state is not None for state in states)
        steps = [len(each) for each in self.stepped]
        return (not recurrences or (recurrences == 1 and bool(steps) and set(steps) == {block})) and all(
            state is None or self._inputs_of_block(index, block) is not None
            for index, state in self.conv_states.items()
        )

    def _inputs_of_block(self, index: int, block: int) -> Tensor | None:
        """Of the convolution, where there is one for each token of the block."""
        whole, size = self._blocks.get(index), self.conv_kernel_size[index]
        return whole if whole is not None and whole.shape[-1] == size + block else None

    def take(self, length: int, kept: int, block: int) -> None:
        if self.stepped:
            after = [each[kept - 1] for each in self.stepped]
            # One call, or one for each head.
            self.update_recurrent_state(after[0] if len(after) == 1 else torch.stack(after, dim=1))
        for index, whole in self._blocks.items():
            self.conv_states[index] = whole[..., kept : kept + self.conv_kernel_size[index]]

    def clear(self) -> None:
        self.begin()
        for index in range(self.number_of_states):
            self.conv_states[index] = self.recurrent_states[index] = None
            self.has_previous_state[index] = False

    def select(self, rows: Tensor) -> None:
        for states in (self.conv_states, self.recurrent_states):
            for index, state in states.items():
                states[index] = None if state is None else state.index_select(0, rows)


class StateAndRowsLayer(StateLayer, RewindLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """A layer with states and with a row for each token, as in Falcon-H1 and Zamba."""

    def __init__(self, number_of_states: int = 1) -> None:
        RewindLayer.__init__(self)
        StateLayer.__init__(self, number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("every layer of these caches makes its own room")

    def snapshot(self) -> Any:
        return super().snapshot(), self.used

    def back_to(self, snapshot: Any) -> None:
        states, length = snapshot
        super().back_to(states)
        RewindLayer.rollback(self, length)

    def take(self, length: int, kept: int, block: int) -> None:
        super().take(length, kept, block)
        RewindLayer.rollback(self, length)

    def clear(self) -> None:
        super().clear()
        RewindLayer.rollback(self, 0)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        RewindLayer.select(self, rows)


class _Copied:
    """Of anything that keeps its state in attributes: they are copied, whatever they are."""

    def __init__(self, owner: Any, names: Sequence[str] | None = None) -> None:
        self._owner = owner
        self._names = tuple(vars(owner)) if names is None else names
        self._empty = self.snapshot()

    def begin(self) -> None: ...

    def snapshot(self) -> dict[str, Any]:
        kind = type(self._owner).__name__
        return {name: _copy(getattr(self._owner, name), f"{kind}.{name}") for name in self._names}

    def back_to(self, snapshot: dict[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(self._owner, name, _copy(value, name))

    def knows(self, kept: int, block: int) -> bool:
        return False

    def take(self, length: int, kept: int, block: int) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        self.back_to(self._empty)

    def select(self, rows: Tensor) -> None:
        raise NotImplementedError(f"{type(self._owner).__name__} is of one sequence")


def _copy(value: Any, where: str) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(part, where) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(part, where) for part in value)
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    raise NotCopyable(f"{where} is a {type(value).__name__}")


class Handed(Protocol):
    """What a model's forward is given of the tokens before."""

    layers: list[Any]

    def arguments(self, tokens: Tensor, start: int) -> Mapping[str, Any]:
        """Return the forward's arguments to read tokens [n] from the place ``start`` on."""

    def was_read(self) -> None:
        """The forward is over."""


class HeldCache(Cache):  # type: ignore[misc]
    """The layers as a model's forward sees them.

    Attributes:
        asked: whose recurrence is computed.
        limited: whether single tokens, too, go through the function for several, see ``limits_steps``.
    """

    def __init__(self, layers: list[Any], model: Any) -> None:
        super().__init__(layers=layers)
        self.asked: StateLayer | None = None
        self.limited = limits_steps(model)
        self._start = self._count = 0
        self._has_rows = any(isinstance(layer, CacheLayerMixin) for layer in layers)
        names = inspect.signature(model.forward).parameters
        self._name = "past_key_values" if "past_key_values" in names else "cache_params"
        self._takes_places = "position_ids" in names

    def arguments(self, tokens: Tensor, start: int) -> Mapping[str, Any]:
        self._start, self._count = start, len(tokens)
        if not self._takes_places:
            return {self._name: self}
        # Bamba's forward would count from 0 whatever was read before.
        places = torch.arange(start, start + len(tokens), device=tokens.device).unsqueeze(0)
        return {self._name: self, "position_ids": places}

    def was_read(self) -> None: ...

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens before; transformers' own cache needs a layer of attention to know."""
        return super().get_seq_length(layer_idx) if self._has_rows else self._start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        if self._has_rows:
            sizes: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx)
            return sizes
        return self._start + query_length, 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        layer: StateLayer = self.layers[layer_idx]
        return layer.own(layer.conv_states, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        layer: StateLayer = self.layers[layer_idx]
        self.asked = layer
        if self.limited and self._count == 1:
            return None
        return layer.own(layer.recurrent_states, state_idx)


class StateCache:
    """What a recurrent or hybrid model keeps of the tokens that it has read; batch size 1.

    Attributes:
        layers: as the forward sees them.
        length: tokens read.
        mechanism: ``PLANES``, until a block was rolled back otherwise; then ``REPLAY``. Set to ``REPLAY``
            before, no state within a block is kept.
        one_by_one: whether blocks are to be read token by token, see ``STEPS``.
    """

    def __init__(self, held: Handed, parts: Sequence[Kept], *, one_by_one: bool = False) -> None:
        self.held, self._parts, self.one_by_one = held, parts, one_by_one
        rows = all(isinstance(part, RowsByToken) for part in parts)
        self.mechanism = STEPS if one_by_one else LENGTH if rows else PLANES
        self.length = 0
        self.most_marks = MOST_MARKS
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._marks: list[tuple[int, list[Any]]] = []  # the state before a forward, and its length
        self.state_bytes = 0  # of one sequence, without what has a row for each token; known after a forward
        self._counted = False
        self._fresh = False  # whether nothing was rolled back since the last forward

    @property
    def layers(self) -> list[Any]:
        return list(self.held.layers)

    @contextmanager
    def reading(self, tokens: Tensor) -> Iterator[Mapping[str, Any]]:
        """Yield the arguments by which a forward reads tokens [n] after those that were read."""
        self._require_rows()
        self._marks.append((self.length, [part.snapshot() for part in self._parts]))
        del self._marks[: -self.most_marks]
        for part in self._parts:
            part.begin()
        end = self.length + len(tokens)
        self._remember(tokens, end)
        with in_steps(self.held, self.mechanism == PLANES):
            yield self.held.arguments(tokens, self.length)
        self.held.was_read()
        self.length, self._fresh = end, True
        if not self._counted:
            self.state_bytes, self._counted = _tensor_bytes([part.snapshot() for part in self._parts]), True

    def _require_rows(self) -> None:
        """Refuse to go on with a row too many or too few: in half precision the logits would not tell."""
        for layer in self.held.layers:
            if isinstance(layer, RewindLayer) and layer.used not in (0, self.length):
                raise RuntimeError(f"{layer.used} rows are cached of {self.length} tokens")

    def _remember(self, tokens: Tensor, end: int) -> None:
        if end > len(self._tokens):
            grown = tokens.new_empty(max(2 * len(self._tokens), end, 256))
            grown[: self.length] = self._tokens[: self.length]
            self._tokens = grown
        self._tokens[self.length : end] = tokens

    def rollback(self, length: int) -> Tensor | None:
        """Keep the first ``length`` tokens; return those [n] of them that have to be read again."""
        fresh, self._fresh = self._fresh, False
        if length >= self.length:
            del self._marks[:-1]  # all of them stand
            return None
        last = self._marks[-1][0] if self._marks else self.length
        kept, block = length - last, self.length - last
        if fresh and kept > 0 and all(part.knows(kept, block) for part in self._parts):
            for part in self._parts:
                part.take(length, kept, block)
            del self._marks[:-1]
            self.length = length
            return None
        if fresh and kept > 0 and last and block <= LONGEST and not self.one_by_one:
            self.mechanism = REPLAY
        while self._marks and self._marks[-1][0] > length:
            self._marks.pop()
        if length and self._marks:
            self.length, snapshots = self._marks.pop()
            for part, snapshot in zip(self._parts, snapshots, strict=True):
                part.back_to(snapshot)
        else:
            self.length = 0
            for part in self._parts:
                part.clear()
        del self._marks[:-1]
        return self._tokens[self.length : length].clone() if length > self.length else None

    def restore(self, length: int) -> Tensor | None:
        """Count the first ``length`` tokens again; return those that have to be read for it."""
        if length <= self.length:
            return self.rollback(length)
        return self._tokens[self.length : length].clone()

    def move(self, start: int, columns: Tensor) -> None:
        raise NotImplementedError("a state has no columns")

    def select(self, rows: Tensor) -> None:
        for part in self._parts:
            part.select(rows)
        self._marks.clear()


def _tensor_bytes(snapshot: Any) -> int:
    if isinstance(snapshot, Tensor):
        return snapshot.nbytes
    if isinstance(snapshot, Mapping):
        snapshot = list(snapshot.values())
    return sum(map(_tensor_bytes, snapshot)) if isinstance(snapshot, (list, tuple)) else 0


def keeps_states(config: Any) -> bool:
    """Return whether a decoder's memory is more than rows by token: running states, which follow one line."""
    if config.is_encoder_decoder:
        return False
    if getattr(text_config(config), "model_type", None) in OWN_STATE:
        return True
    try:
        parts = parts_of(layers_of(config) or [])
    except NotCopyable:
        return True
    return not all(isinstance(part, RowsByToken) for part in parts)


@torch.inference_mode()
def state_bytes_of(config: Any, dtype: torch.dtype | None) -> int:
    """Return the bytes of one sequence's running states before a weight is loaded; 0 where there are none.

    By a forward without numbers, on the device ``meta``, as wide as the model's.
    """
    if not keeps_states(config):
        return 0
    try:
        model = skeleton(config, dtype)
        if hasattr(model, "set_experts_implementation"):  # the usual one asks which expert a token takes
            model.set_experts_implementation("batched_mm")
        cache = cache_of(model)
        tokens = torch.zeros(2, dtype=torch.int64, device="meta")
        with cache.reading(tokens) as given:
            model(input_ids=tokens.unsqueeze(0), use_cache=True, **given)
    except Exception:  # whatever it is, loading says it
        return 0
    return cache.state_bytes


def cache_of(model: Any) -> RewindCache | StateCache:
    """Make an empty cache for a model of transformers.

    Of a state that cannot be kept aside it is one without it: who rolls back refuses such a model beforehand
    (``source.require_rollback``), and its self-test would.
    """
    config = model.config
    text = text_config(config)
    if config.is_encoder_decoder:
        return RewindCache()
    if text.model_type in OWN_STATE:
        return OWN_STATE[text.model_type](model)
    layers = layers_of(config)
    if layers is None or all(type(layer) in (RewindLayer, DummyLayer) for layer in layers):
        return RewindCache()
    try:
        parts = parts_of(layers)
    except NotCopyable:
        return RewindCache()
    let_step(model)
    return StateCache(HeldCache(layers, model), parts)


def layers_of(config: Any) -> list[Any] | None:
    """Return a layer that can be rolled back for each of transformers' own; None where it names none."""
    try:
        found = DynamicCache(config=config).layers
    except Exception:  # an unusual configuration: the self-test will decide
        return None
    return [_layer_like(layer) for layer in found]


def _layer_like(layer: Any) -> Any:
    if isinstance(
        layer, LinearAttentionAndFullAttentionLayer | LinearAttentionAndSlidingWindowAttentionLayer
    ):
        return StateAndRowsLayer(layer.number_of_states)
    if isinstance(layer, LinearAttentionLayer):
        return StateLayer(layer.number_of_states)
    if isinstance(layer, DynamicIndexedLayer) or hasattr(layer, "update_index"):
        return RewindIndexedLayer()
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        return RewindLayer()
    return layer


def parts_of(layers: Sequence[Any]) -> list[Kept]:
    """Return what is rolled back of layers; ``NotCopyable`` where one is of a kind that cannot be."""
    return [
        layer
        if isinstance(layer, StateLayer)
        else RowsByToken(layer)
        if isinstance(layer, RewindLayer)
        else _Copied(layer)
        for layer in layers
        if not isinstance(layer, DummyLayer)
    ]


class _Given:
    """A state that is one argument of the forward, under this name."""

    def __init__(self, name: str, state: Any, layers: list[Any] | None = None) -> None:
        self._name, self.state = name, state
        self.layers = [] if layers is None else layers

    def arguments(self, tokens: Tensor, start: int) -> Mapping[str, Any]:
        return {self._name: self.state}

    def was_read(self) -> None: ...


def _minimax(model: Any) -> StateCache:
    """MiniMax's own cache: states of linear attention in a list, beside the layers of attention."""
    state = importlib.import_module(type(model).__module__).MiniMaxCache()
    state.layer_class_to_replicate = RewindLayer
    held = _Given("past_key_values", state, state.layers)
    return StateCache(held, [_Copied(state, ("linear_cache",)), _AllRows(state)])


def _rwkv(model: Any) -> StateCache:
    """RWKV's five states of all layers, which the forward writes to."""
    shape = (1, model.config.hidden_size, model.config.num_hidden_layers)
    kinds = (model.dtype, model.dtype, torch.float32, torch.float32, torch.float32)
    states = [torch.zeros(shape, dtype=kind, device=model.device) for kind in kinds]
    states[4] -= 1e30
    held = _Given("state", states)
    return StateCache(held, [_Copied(held, ("state",))])


def _xlstm(model: Any) -> StateCache:
    """xLSTM's own cache, which the forward writes to."""
    module = importlib.import_module(type(model).__module__)
    state = module.xLSTMCache(model.config, 1, device=model.device, dtype=model.dtype)
    return StateCache(_Given("cache_params", state), [_Copied(state, ("rnn_state", "seqlen_offset"))])


class _InModules(HeldCache):
    """RecurrentGemma's states, which are attributes of its layers: there while a forward runs.

    Two sequences of one model would overwrite each other's.
    """

    def __init__(self, layers: list[Any], model: Any) -> None:
        super().__init__(layers, model)
        self._modules = [part for part in model.modules() if hasattr(part, "conv1d_state")]
        self.states: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(self._modules)

    def arguments(self, tokens: Tensor, start: int) -> Mapping[str, Any]:
        for module, (conv, recurrent) in zip(self._modules, self.states, strict=True):
            module.conv1d_state, module.rg_lru.recurrent_states = conv, recurrent
        return super().arguments(tokens, start)

    def was_read(self) -> None:
        self.states = [(part.conv1d_state, part.rg_lru.recurrent_states) for part in self._modules]


def _recurrent_gemma(model: Any) -> StateCache:
    layers = layers_of(model.config) or []
    held = _InModules(layers, model)
    rows = [part for part in parts_of(layers) if isinstance(part, RowsByToken)]
    # A block of several tokens forgets the convolution before it.
    return StateCache(held, [_Copied(held, ("states",)), *rows], one_by_one=True)


OWN_STATE = {"minimax": _minimax, "recurrent_gemma": _recurrent_gemma, "rwkv": _rwkv, "xlstm": _xlstm}
"""Model types that keep their state in something of their own."""

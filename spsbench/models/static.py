"""A causal language model with a KV cache of fixed length: every forward has a fixed shape.

The replay of a CUDA graph can depend on the content of tensors only. So all cache slots are allocated up
front, keys and values are written at positions given as a tensor, and the mask hides all positions after
a token's own: a rollback needs no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from spsbench.models.causal_lm import attention_window, text_config
from spsbench.models.selftest import tolerance
from spsbench.models.torch_lm import TorchLM


class NotStatic(Exception):
    """The model's forward cannot be given a fixed shape; the message says why."""


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer, [B, heads, slots, width] each.

    Attributes:
        positions: [n], the slots of the next n keys and values.
    """

    def __init__(self, slots: int, batch: int = 1) -> None:
        super().__init__()
        self._slots, self._batch = slots, batch
        self.positions = torch.empty(0, dtype=torch.int64)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate all slots as zeros: masked values are multiplied too, by 0."""
        shape = (self._batch, key_states.shape[1], self._slots)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [1, heads, n, width] keys and values at ``positions``; return all slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.positions, key_states)
        self.values.index_copy_(2, self.positions, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(number of keys, their offset)."""
        return self._slots, 0

    def get_seq_length(self) -> int:
        """Unknown to the host: the caller gives positions."""
        return 0

    def get_max_length(self) -> int:
        """Capacity in tokens."""
        return self._slots


Layer = TypeVar("Layer", bound=FixedLayer)


class _Static(Generic[Layer]):
    """A forward over layers of fixed length.

    Attributes:
        wide: dtype of probabilities, at least float32.
    """

    def __init__(self, model: TorchLM, slots: int, layer: Callable[[], Layer]) -> None:
        _require_plain(model)
        self.vocab_size, self.device, self.slots = model.vocab_size, model.device, slots
        self.wide = torch.promote_types(model.dtype, torch.float32)
        self._model = model.model
        self._layers = [layer() for _ in range(text_config(model.config).num_hidden_layers)]
        self._cache = Cache(layers=self._layers)
        self._slot_numbers = torch.arange(slots, device=model.device)

    def _forward(self, tokens: Tensor, positions: Tensor, last: int) -> Tensor:
        """[b, last, V] logits of [b, n] tokens at positions [b, n]."""
        seen = self._slot_numbers <= positions.unsqueeze(-1)
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=seen.unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=last,
        )
        logits: Tensor = output.logits[:, -last:, : self.vocab_size]
        return logits


class StaticLM(_Static[FixedLayer]):
    """Scores tokens at given positions, with fixed shapes and without a host synchronization."""

    def __init__(self, model: TorchLM, slots: int) -> None:
        super().__init__(model, slots, lambda: FixedLayer(slots))

    def score(self, tokens: Tensor, positions: Tensor, last: int) -> Tensor:
        """Score tokens at their positions and return the logits after the last few.

        Args:
            tokens: [n] int64.
            positions: [n] int64, consecutive; the slots before the first hold the sequence so far.
            last: number of logit rows to return, 1 to n.

        Returns:
            [last, V] logits.
        """
        for layer in self._layers:
            layer.positions = positions
        return self._forward(tokens.unsqueeze(0), positions.unsqueeze(0), last)[0]

    def poison(self, first: int, value: float) -> None:
        """Overwrite all slots from ``first`` on, to test that rolled-back slots have no effect."""
        for layer in self._layers:
            if layer.is_initialized:
                layer.keys[:, :, first:] = value
                layer.values[:, :, first:] = value


def _require_plain(model: TorchLM) -> None:
    """Refuse attention that a mask over all slots would not be."""
    config = model.config
    if config._attn_implementation != "sdpa":
        raise NotStatic(f"its attention is {config._attn_implementation}, not sdpa")
    if attention_window(config) is not None:
        raise NotStatic("it has sliding or chunked attention")


@torch.inference_mode()
def require_same_answers(model: TorchLM, static: StaticLM) -> None:
    """Compare with the model's own forward: two blocks, in slots that held other tokens."""
    size = min(16, static.slots)
    tokens = torch.randint(model.vocab_size, (size,), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(model.device)
    numbers = torch.arange(size, device=model.device)
    model.rollback(0)
    expected = model.score(tokens, last=size)
    model.rollback(0)
    cut = size // 2
    static.score(tokens.flip(0), numbers, last=1)  # leaves other tokens in every slot
    parts = [
        static.score(tokens[part], numbers[part], last=cut) for part in (slice(0, cut), slice(cut, 2 * cut))
    ]
    found, expected = torch.cat(parts).float(), expected[: 2 * cut].float()
    if model.vocabulary is not None:
        found, expected = (rows[:, model.vocabulary] for rows in (found, expected))
    difference = float((found - expected).abs().max())
    scale = float(expected.abs().max())
    if not difference <= tolerance(model.dtype) * max(scale, 1e-9):
        raise NotStatic(f"its logits differ by {difference:.3g} with positions given as a tensor")


class _BatchLayer(FixedLayer):
    """Keys and values of one attention layer, [B, heads, slots, width] each.

    Attributes:
        positions: [b, n], the slots of the next n keys and values of each row that is written.
    """

    def __init__(self, slots: int, batch: int) -> None:
        super().__init__(slots, batch)
        self.row: int | None = None

    def clear(self, row: int) -> None:
        """Zeros in all slots of a row."""
        if self.is_initialized:
            self.keys[row].zero_()
            self.values[row].zero_()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [b, heads, n, width] keys and values at ``positions``; return all slots of these rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        found = []
        for held, states in ((self.keys, key_states), (self.values, value_states)):
            own = held if self.row is None else held.narrow(0, self.row, 1)
            own.scatter_(2, self.positions[:, None, :, None].expand_as(states), states)
            found.append(own)
        return found[0], found[1]


class StaticBatchLM(_Static[_BatchLayer]):
    """See ``decode.batch.BatchModel``; without a host synchronization where positions are tensors."""

    def __init__(self, model: TorchLM, batch: int, slots: int) -> None:
        super().__init__(model, slots, lambda: _BatchLayer(slots, batch))
        self.batch = batch

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """See ``BatchModel.begin``; slots are masked and not skipped, so that NaN in one would stay."""
        for layer in self._layers:
            layer.clear(row)
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1], device=self.device).unsqueeze(0)
            self._at(tokens, self._slot_numbers[: len(prompt) - 1].unsqueeze(0), 1, row)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        return self.score_at(tokens, torch.tensor(starts, device=self.device), last)

    def score_at(self, tokens: Tensor, starts: Tensor, last: int) -> Tensor:
        """``score`` with ``starts`` [B] on the device."""
        n = tokens.shape[1]
        return self._at(tokens, starts.unsqueeze(1) + self._slot_numbers[:n], last, None)

    def _at(self, tokens: Tensor, positions: Tensor, last: int, row: int | None) -> Tensor:
        for layer in self._layers:
            layer.positions, layer.row = positions, row
        return self._forward(tokens, positions, last)

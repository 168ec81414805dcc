"""B sequences over torch, with caches of fixed length: every forward has a fixed shape.

As ``static``: what a position may look at follows from positions given as tensors, so that the rows of a
batch may have any lengths and a rollback needs no operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from spsbench.models.causal_lm import text_config
from spsbench.models.static import FixedLayer, require_plain
from spsbench.models.torch_lm import TorchLM


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


class StaticBatchLM:
    """See ``decode.batch.BatchModel``; without a host synchronization where positions are tensors.

    Attributes:
        wide: dtype of probabilities, at least float32.
    """

    def __init__(self, model: TorchLM, batch: int, slots: int) -> None:
        require_plain(model)
        self.batch, self.slots = batch, slots
        self.vocab_size, self.device = model.vocab_size, model.device
        self.wide = torch.promote_types(model.dtype, torch.float32)
        self._model = model.model
        count = text_config(model.config).num_hidden_layers
        self._layers = [_BatchLayer(slots, batch) for _ in range(count)]
        self._cache = Cache(layers=self._layers)
        self._slot_numbers = torch.arange(slots, device=model.device)

    def begin(self, row: int, prompt: Sequence[int]) -> None:
        """See ``BatchModel.begin``; slots are masked and not skipped, so that NaN in one would stay."""
        for layer in self._layers:
            layer.clear(row)
        if len(prompt) > 1:
            tokens = torch.tensor(prompt[:-1], device=self.device).unsqueeze(0)
            self._forward(tokens, self._slot_numbers[: len(prompt) - 1].unsqueeze(0), 1, row)

    def score(self, tokens: Tensor, starts: Sequence[int], last: int) -> Tensor:
        """See ``BatchModel.score``."""
        return self.score_at(tokens, torch.tensor(starts, device=self.device), last)

    def score_at(self, tokens: Tensor, starts: Tensor, last: int) -> Tensor:
        """``score`` with ``starts`` [B] on the device."""
        n = tokens.shape[1]
        return self._forward(tokens, starts.unsqueeze(1) + self._slot_numbers[:n], last, None)

    def _forward(self, tokens: Tensor, positions: Tensor, last: int, row: int | None) -> Tensor:
        for layer in self._layers:
            layer.positions, layer.row = positions, row
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

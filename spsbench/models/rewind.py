"""Keys and values of attention that are rolled back by a length, without a copy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicIndexedLayer, DynamicLayer

from spsbench.models.causal_lm import roomy


class RewindLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one attention layer in a buffer with room to grow.

    ``DynamicLayer`` copies the whole past for every token. Here only the new rows are written, and
    attention gets views that end at the current length. Layers with a sliding window store every token
    too: the mask applies the window, and a rollback stays exact.
    """

    def __init__(self) -> None:
        DynamicLayer.__init__(self)
        self.used = 0
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, n, d] keys and values; return all of them."""
        n = key_states.shape[-2]
        start = self.used
        if self._key_buffer is None:
            self._key_buffer, self._value_buffer = key_states[:, :, :0], value_states[:, :, :0]
            self.is_initialized = True
        keys, values = self.extended(n)
        # narrow() costs a third of an indexing slice, and this runs in every layer.
        keys.narrow(2, start, n).copy_(key_states)
        values.narrow(2, start, n).copy_(value_states)
        return keys, values

    def extended(self, count: int) -> tuple[Tensor, Tensor]:
        """Return all keys and values, of which the caller writes the last ones; not before the first."""
        assert self._key_buffer is not None
        assert self._value_buffer is not None
        start, self.used = self.used, self.used + count
        self._key_buffer = _with_room(self._key_buffer, start, self.used)
        self._value_buffer = _with_room(self._value_buffer, start, self.used)
        self.keys = self._key_buffer.narrow(2, 0, self.used)
        self.values = self._value_buffer.narrow(2, 0, self.used)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.used

    def rollback(self, length: int) -> None:
        self.used = min(self.used, length)

    def restore(self, length: int) -> None:
        self.used = length

    def move(self, start: int, columns: Tensor) -> None:
        """Move the tokens in these columns to ``start`` and after it; they are then the last ones."""
        self.used = start + len(columns)
        for buffer in (self._key_buffer, self._value_buffer):
            if buffer is not None and len(columns):
                buffer.narrow(2, start, len(columns)).copy_(buffer.index_select(2, columns))

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch."""
        if self._key_buffer is not None and self._value_buffer is not None:
            self._key_buffer = self._key_buffer.index_select(0, rows)
            self._value_buffer = self._value_buffer.index_select(0, rows)


class RewindIndexedLayer(RewindLayer, DynamicIndexedLayer):  # type: ignore[misc]
    """Keys and values of a sparse attention layer, and the keys of the index that chooses among them.

    They are rows by token like any keys (DeepSeek V3.2's ``update_indexer``, MiniMax M3's ``update_index``),
    so that a rollback is a shorter length of both.
    """

    def __init__(self) -> None:
        DynamicIndexedLayer.__init__(self)
        RewindLayer.__init__(self)
        self.indexer_position_ids: Tensor | None = None
        self._index_buffer: Tensor | None = None
        self._indexed = 0

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Append [1, n, d] keys of the index; return all of them."""
        return self.update_index(indexer_key_states.unsqueeze(1)).squeeze(1)

    def update_index(self, idx_k: Tensor) -> Tensor:
        """Append [1, heads, n, d] keys of the index; return all of them."""
        n = idx_k.shape[-2]
        start, self._indexed = self._indexed, self._indexed + n
        held = idx_k[:, :, :0] if self._index_buffer is None else self._index_buffer
        self._index_buffer = _with_room(held, start, self._indexed)
        self._index_buffer.narrow(2, start, n).copy_(idx_k)
        return self._index_buffer.narrow(2, 0, self._indexed)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self._indexed = min(self._indexed, length)
        if self.indexer_position_ids is not None:
            positions = self.indexer_position_ids[..., :length]
            self.indexer_position_ids = positions if length else None

    def restore(self, length: int) -> None:
        raise NotImplementedError("positions of the index are forgotten: the tokens are read again")


class RewindCache(Cache):  # type: ignore[misc]
    """One ``RewindLayer`` per attention layer, rolled back together."""

    mechanism = "length"
    """How it is rolled back, see ``recurrent.StateCache``."""
    one_by_one = False
    state_bytes = 0

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RewindLayer)
        self._reading = nullcontext({"past_key_values": self})

    @property
    def length(self) -> int:
        return self.layers[0].used if self.layers else 0

    def reading(self, tokens: Tensor) -> AbstractContextManager[dict[str, Any]]:
        """Yield the arguments by which a forward reads tokens after those that were read."""
        return self._reading

    def rollback(self, length: int) -> Tensor | None:
        """Keep the first ``length`` tokens; return None: none has to be read again."""
        for layer in self.layers:
            layer.used = min(layer.used, length)
        return None

    def restore(self, length: int) -> Tensor | None:
        """Count the first ``length`` tokens again, which a rollback dropped."""
        for layer in self.layers:
            layer.used = length
        return None

    def move(self, start: int, columns: Tensor) -> None:
        for layer in self.layers:
            layer.move(start, columns)

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)


def _with_room(buffer: Tensor, held: int, wanted: int) -> Tensor:
    """It starts with the ``held`` tokens of ``buffer`` and has room for ``wanted``."""
    if wanted <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = buffer.shape
    grown = buffer.new_empty((batch, heads, roomy(held, wanted), width))
    grown[:, :, :held] = buffer[:, :, :held]
    return grown

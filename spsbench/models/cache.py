"""A KV cache that grows in place and rolls back by resetting its length."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_BLOCK = 256


class RewindLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one attention layer in a buffer with room to grow.

    ``DynamicLayer`` copies the whole past for every token. Here only the new rows are written, and
    attention gets views that end at the current length. Layers with a sliding window store every token
    too: the mask applies the window, and a rollback stays exact.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = 0
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, n, d] keys and values; return all of them."""
        n = key_states.shape[-2]
        start, self.used = self.used, self.used + n
        self._key_buffer = _with_room(self._key_buffer, key_states, start, self.used)
        self._value_buffer = _with_room(self._value_buffer, value_states, start, self.used)
        # narrow() costs a third of an indexing slice, and this runs in every layer.
        self._key_buffer.narrow(2, start, n).copy_(key_states)
        self._value_buffer.narrow(2, start, n).copy_(value_states)
        self.is_initialized = True
        self.keys = self._key_buffer.narrow(2, 0, self.used)
        self.values = self._value_buffer.narrow(2, 0, self.used)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Number of cached tokens."""
        return self.used

    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` tokens."""
        self.used = min(self.used, length)

    def restore(self, length: int) -> None:
        """Count the first ``length`` tokens of the buffer again, which a rollback let go of."""
        self.used = length

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch."""
        if self._key_buffer is not None and self._value_buffer is not None:
            self._key_buffer = self._key_buffer.index_select(0, rows)
            self._value_buffer = self._value_buffer.index_select(0, rows)


class RewindCache(Cache):  # type: ignore[misc]
    """One ``RewindLayer`` per attention layer, rolled back together."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RewindLayer)

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return self.layers[0].used if self.layers else 0

    def layer(self, number: int) -> RewindLayer:
        """The layer with that index, created if missing."""
        while len(self.layers) <= number:
            self.layers.append(RewindLayer())
        found: RewindLayer = self.layers[number]
        return found

    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` tokens."""
        for layer in self.layers:
            layer.rollback(length)

    def restore(self, length: int) -> None:
        """Count the first ``length`` tokens again, which a rollback let go of."""
        for layer in self.layers:
            layer.restore(length)

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch, by their numbers [n]."""
        for layer in self.layers:
            layer.select(rows)


def _with_room(buffer: Tensor | None, states: Tensor, held: int, wanted: int) -> Tensor:
    """A buffer with room for ``wanted`` tokens that starts with the ``held`` ones of ``buffer``."""
    if buffer is not None and wanted <= buffer.shape[-2]:
        return buffer
    batch, heads, _, width = states.shape
    room = max(-(-wanted // _BLOCK) * _BLOCK, 2 * held)
    grown = states.new_empty((batch, heads, room, width))
    if buffer is not None:
        grown[:, :, :held] = buffer[:, :, :held]
    return grown

"""A table whose context is a running state, rolled back as a recurrent model's is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spsbench.law.enumeration import TableModel
from spsbench.models.recurrent import PLANES, StateCache, StateLayer


class _Held:
    def __init__(self) -> None:
        self.layers: list[Any] = [StateLayer()]

    def arguments(self, tokens: Tensor, start: int) -> Mapping[str, Any]:
        return {"layer": self.layers[0]}

    def was_read(self) -> None: ...


class StateTable(TableModel):
    """All that it knows of the tokens before is one number, exact in float64, which every token changes."""

    how = PLANES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        held = _Held()
        self._cache = StateCache(held, held.layers)
        self._cache.mechanism = self.how

    @property
    def length(self) -> int:
        return self._cache.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        base = self.vocab_size + 1
        with self._cache.reading(tokens) as given:
            layer = given["layer"]
            before = layer.own(layer.recurrent_states, 0)
            state = torch.zeros(1, 1, dtype=torch.float64) if before is None else before
            states = [state := state * base + token + 1 for token in tokens]
            if self.how == PLANES and before is not None:
                layer.stepped.append(states)
            layer.update_recurrent_state(states[-1])
        return torch.stack([self._logits(self._context(state)) for state in states[-last:]])

    def rollback(self, length: int) -> None:
        again = self._cache.rollback(length)
        if again is not None:
            self.score(again, 1)

    def _context(self, state: Tensor) -> tuple[int, ...]:
        code, tokens = int(state), list[int]()
        assert code < 1 << 53, "a longer context is not exact"
        while code:
            code, digit = divmod(code, self.vocab_size + 1)
            tokens.append(digit - 1)
        return tuple(reversed(tokens))

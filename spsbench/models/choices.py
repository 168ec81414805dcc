"""Which experts, or which keys of an index, forwards chose: discrete choices, which rounding can turn.

A router's scores of two experts, or an index's of two keys, may be closer than rounding. Then the same text
read in other blocks takes another expert, and the row moves by far more than rounding moves it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

_TOP_K, _MAXIMA = (torch.topk, Tensor.topk), (torch.max, Tensor.max)
_ROUTED = 2
_MASKED, _NOTHING = -1e30, -1
"""Which of the candidates that a mask left out a top-k names means nothing."""


class _Call(NamedTuple):
    """Of one top-k the set that it chose for each token [n, m], and of how many candidates."""

    chosen: Tensor
    candidates: int


class Turned(NamedTuple):
    """[n] whether two readings of the same n tokens chose otherwise anywhere; None without choices."""

    experts: Tensor | None
    keys: Tensor | None

    @property
    def either(self) -> Tensor | None:
        known = [mask for mask in self if mask is not None]
        return torch.stack(known).any(0) if known else None


class Choices(TorchFunctionMode):
    """Remembers the top-k of every layer in forwards of one sequence, token by token.

    Routers and indices have no interface in common, but all of them take a top-k, or (routers, of scores
    [tokens, experts]) a maximum after the other. The maximum over keys that attention with sinks subtracts
    chooses nothing. Forwards that take none leave nothing here. Batches of one sequence.

    Attributes:
        is_idle: whether a forward chose nothing: then no other does, and none has to be watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._forwards: list[list[_Call]] = []
        self.is_idle = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **kwargs or {})
        is_choice = func in _TOP_K or (func in _MAXIMA and args[0].ndim == _ROUTED)
        if is_choice and isinstance(result, tuple) and result[1].ndim > 1:
            values, indices = result
            chosen = indices.masked_fill(values < _MASKED, _NOTHING)
            self._calls.append(_Call(chosen, args[0].shape[-1]))
        return result

    def forward_ended(self, tokens: int, kept: int | None = None) -> Self:
        """Keep what a forward of so many tokens chose for the first ``kept``; by default for all of them."""
        if not self._calls:
            self.is_idle = True
            return self
        sets = [(_by_token(chosen, tokens), candidates) for chosen, candidates in self._calls]
        self._calls.clear()
        self._forwards.append(
            [_Call(chosen[:kept].cpu(), candidates) for chosen, candidates in sets if chosen is not None]
        )
        return self

    def turned(self, other: Choices) -> Turned:
        """Compare with another reading of the same tokens, or of the first of them."""
        differ: dict[bool, list[Tensor]] = {True: [], False: []}
        for one, two in zip(self._layers(), other._layers(), strict=False):
            sets, length = (
                _joined([call.chosen for call in (*one, *two)]),
                sum(len(call.chosen) for call in one),
            )
            n = min(length, len(sets) - length)
            # Experts stay as many; the keys of an index are those that were read.
            is_index = len({call.candidates for call in (*one, *two)}) > 1
            differ[is_index].append((sets[:n] != sets[length : length + n]).any(-1))
        experts, keys = (torch.stack(differ[kind]).any(0) if differ[kind] else None for kind in (False, True))
        return Turned(experts, keys)

    def _layers(self) -> list[tuple[_Call, ...]]:
        return list(zip(*self._forwards, strict=False))


def watching(choices: Choices | None) -> AbstractContextManager[Any]:
    """Return what to run a forward in whose choices are wanted, if any."""
    return nullcontext() if choices is None or choices.is_idle else choices


def _by_token(chosen: Tensor, tokens: int) -> Tensor | None:
    """[n, m] a top-k's indices with all that is chosen for a token in its row; None if it is of no tokens."""
    at = next((dim for dim in range(chosen.ndim - 1) if chosen.shape[dim] == tokens), None)
    return None if at is None else chosen.movedim(at, 0).reshape(tokens, -1)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join [n, m] choices, of which some have fewer columns than others, as sets."""
    width = max(part.shape[1] for part in parts)
    return (
        torch.cat([pad(part, (0, width - part.shape[1]), value=_NOTHING) for part in parts]).sort(-1).values
    )

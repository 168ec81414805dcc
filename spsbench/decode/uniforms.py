"""The uniform numbers of one sequence, in an order that depends on its seed alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

_BLOCK = 1024


class Uniforms(Protocol):
    """A stream of uniform numbers in [0, 1).

    Attributes:
        device: where its numbers are, and so the models.
    """

    device: torch.device

    def __call__(self, n: int, /) -> Tensor:
        """The next n numbers, [n]."""
        ...


class UniformStream:
    """Hands out uniform numbers in [0, 1) from blocks drawn on the CPU.

    A block is drawn and moved to the device at once, so that a loop pays for a slice only and the
    numbers do not depend on the device.

    Args:
        seed: of this sequence.
        device: where the models are.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.device = device
        self._block = torch.empty(0)
        self._used = 0

    def __call__(self, n: int) -> Tensor:
        """The next n numbers, [n] float32."""
        if self._used + n > len(self._block):
            self._block = torch.rand(max(n, _BLOCK), generator=self._generator).to(self.device)
            self._used = 0
        self._used += n
        return self._block[self._used - n : self._used]


class ScriptedUniforms:
    """Hands out given numbers, for proofs and tests.

    Args:
        loops: the numbers of each loop, in order; it must ask for just as many.
    """

    device = torch.device("cpu")

    def __init__(self, loops: Iterable[Tensor]) -> None:
        self._loops = iter(loops)

    def __call__(self, n: int) -> Tensor:
        """The next loop's numbers, [n]."""
        numbers = next(self._loops)
        assert len(numbers) == n
        return numbers

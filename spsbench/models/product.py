"""A matrix product in one of two forms: torch's own, and oneDNN's with weights packed beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Modes:
    """How a model multiplies at the moment.

    Attributes:
        packed: with packed weights, where there are any.
    """

    def __init__(self) -> None:
        self.packed = False

    @contextmanager
    def stock(self) -> Iterator[None]:
        """Plain products while the block lasts: what others' loops multiply with."""
        packed, self.packed = self.packed, False
        try:
            yield
        finally:
            self.packed = packed


class Product:
    """x W^T + b with W plain, and packed where it was made so.

    Args:
        weight: [out, in], one layer's or that of several, one under the other.
        bias: [out], or None.
        modes: of the model that it belongs to.
        layers: the model's own layers whose weights it holds, in order.

    Attributes:
        layers: as given.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        modes: Modes,
        layers: Sequence[nn.Linear] = (),
    ) -> None:
        self.bias = bias
        self._plain: Tensor | None = weight
        self._packed: Tensor | None = None
        self._modes = modes
        self.layers = list(layers)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        if self._packed is not None and (self._modes.packed or self._plain is None):
            return _packed_product(x, self._packed, self.bias)
        return nn.functional.linear(x, self.weight, self.bias)

    @property
    def weight(self) -> Tensor:
        """[out, in]; unpacked anew at each call where only the packed form is kept."""
        if self._plain is not None:
            return self._plain
        assert self._packed is not None
        return self._packed.to_dense()

    @property
    def second_copy_bytes(self) -> int:
        """Size of the packed form where the plain one is kept beside it."""
        return 0 if self._plain is None or self._packed is None else self._plain.nbytes

    def pack(self) -> None:
        """Keep the weight in both forms."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 8)

    def keep_packed_alone(self) -> None:
        """Let go of the plain form, also in the model's own layers.

        These keep a parameter of the same shape without storage, so that sizes are counted as before,
        and unpack the weight whenever the model's own forward asks for it: slow, and exact.
        """
        first = 0
        for layer in self.layers:
            hollow = torch.empty_like(layer.weight, device="meta")
            layer.weight = nn.Parameter(hollow, requires_grad=False)
            own = partial(self._part, layer.bias, first, len(hollow))
            setattr(layer, "forward", own)  # noqa: B010 - mypy
            first += len(hollow)
        self._plain = None

    def _part(self, bias: Tensor | None, first: int, rows: int, x: Tensor) -> Tensor:
        """The product of one of several layers."""
        return nn.functional.linear(x, self.weight.narrow(0, first, rows), bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether the private operators are there and take this dtype."""
    if not torch._C._has_mkldnn or dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        probe = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype), 8)
        _packed_product(torch.zeros(1, 16, dtype=dtype), probe, None)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


class ProductLinear(nn.Module):
    """A ``Product`` in the place of a linear layer.

    Args:
        linear: the layer whose place it takes.
        modes: of the model.
    """

    def __init__(self, linear: nn.Linear, modes: Modes) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.product = Product(linear.weight, linear.bias, modes)

    def forward(self, x: Tensor) -> Any:
        """See ``Product``."""
        return self.product(x)

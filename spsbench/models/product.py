"""A matrix product in one of two forms: torch's own, and oneDNN's with weights packed beforehand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Modes:
    """Which numbers of rows a model multiplies packed.

    Attributes:
        packed_rows: those row counts; others are multiplied plain.
        packed: whether the forward under way is one of them.
    """

    def __init__(self) -> None:
        self.packed_rows: set[int] = set()
        self.packed = False

    def begin(self, rows: int) -> None:
        """A forward of so many rows begins."""
        self.packed = rows in self.packed_rows

    def name(self, rows: int) -> str:
        """``packed`` or ``plain``."""
        return "packed" if rows in self.packed_rows else "plain"


class Product:
    """x W^T + b with W plain, and packed where it was made so.

    Args:
        weight: [out, in].
        bias: [out], or None.
        modes: of the model that it belongs to.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, modes: Modes) -> None:
        self.weight, self.bias = weight, bias
        self._modes = modes
        self._packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        if self._packed is not None and self._modes.packed:
            return _packed_product(x, self._packed, self.bias)
        return nn.functional.linear(x, self.weight, self.bias)

    def pack(self) -> None:
        """Keep the weight in both forms."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 8)

    def unpack(self) -> None:
        """Let go of the packed form."""
        self._packed = None


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

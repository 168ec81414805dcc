"""Products in bfloat16 on a CPU by weights that are laid out once, in blocks, for oneDNN's kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def has_kernels() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_be_laid_out(weight: Tensor) -> bool:
    is_one = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.numel() > 0
    return is_one and has_kernels()


def laid_out(weight: Tensor) -> nn.Parameter:
    """Return a weight [out, in] in oneDNN's layout."""
    rows = weight.contiguous()
    return nn.Parameter(torch.ops.mkldnn._reorder_linear_weight(rows, 1), requires_grad=False)


_FEW, _LARGE = 4, 1 << 20
"""Rows that take less than one does, by a weight of so many numbers."""


Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def multiplied(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return out


def product(states: Tensor, weight: Tensor, bias: Tensor | None = None, by: Multiply = multiplied) -> Tensor:
    """[..., out] of [..., in] by a weight that is laid out.

    One row by a large weight is multiplied as four equal ones, with the same numbers: by itself a token would
    cost more than the block of drafts that replaces it.
    """
    is_one = states.numel() == states.shape[-1] and weight.numel() >= _LARGE
    rows = states.reshape(1, -1).expand(_FEW, -1) if is_one else states
    out = by(rows, weight, bias)
    return out[:1].view(*states.shape[:-1], -1) if is_one else out


class Product:
    """Multiplies by a weight [out, in] that nothing else reads: laid out where there are kernels for it.

    Attributes:
        nbytes: of the weight and the bias.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.dtype = weight.dtype
        self._bias = bias
        self._is_laid_out = can_be_laid_out(weight)
        self._weight = laid_out(weight) if self._is_laid_out else weight

    def __call__(self, states: Tensor) -> Tensor:
        """[n, out] of [n, in]."""
        multiply = product if self._is_laid_out else linear
        return multiply(states, self._weight, self._bias)

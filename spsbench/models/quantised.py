"""A copy of a model with weights rounded to 8 or 4 bits.

On a CPU the products of a few rows go through torch's own kernels for such weights, where they take
the dtype and the shape. These read a quarter or an eighth of the bytes of float32. They multiply in
bfloat16: weights exactly (the codes are small whole numbers), activations rounded to 8 bits of mantissa.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.models import memory
from spsbench.models.causal_lm import CausalLM
from spsbench.models.packed_linear import PackedLinear, PackedModule
from spsbench.models.twin import rebuilt
from spsbench.models.weights import available_bytes

_MANY_ROWS = 16
# The 8-bit kernel reads beyond the end of a row whose width is not a multiple of its vectors: 40 crashes.
_WIDTH = 32
# What torch._weight_int4pack_mm_for_cpu takes.
_GROUPS = frozenset({32, 64, 128, 256})
_KERNEL_DTYPES = frozenset({torch.float32, torch.bfloat16})
_FOUR_BIT_ROWS = 16
STEPS = {8: 127, 4: 7}
"""Bits that weights can be rounded to, and the largest code of each."""


class RoundedProduct:
    """x W^T + b with W rounded to the nearest of evenly spaced steps, symmetric about 0.

    Args:
        weight: [out, in].
        bias: [out], or None.
        bits: 8: one step per row of W; 4: one per ``group`` neighbours of a row.
        group: of 4 bits.

    Attributes:
        uses_kernel: whether a few rows are multiplied with the codes; if not, all are with the rounded
            weight in the model's own dtype, which is kept whole: the same law, and no gain in speed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, bits: int, group: int) -> None:
        self.bias, self._bits, self._dtype = bias, bits, weight.dtype
        self._group = group if bits == 4 else weight.shape[1]
        self._codes, self._steps = _rounded(weight.detach(), bits, self._group)
        self.uses_kernel = _has_kernel(weight, bits, self._group)
        self._ones = torch.ones(len(weight), dtype=torch.bfloat16)
        self._packed = self._pack() if self.uses_kernel and bits == 4 else None
        self._dense = None if self.uses_kernel else self._decoded()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; many rows go through the model's own dtype, faster there."""
        rows = x.reshape(-1, x.shape[-1])
        if not self.uses_kernel or len(rows) > _MANY_ROWS:
            return nn.functional.linear(x, self.weight, self.bias)
        product = self._few(rows.bfloat16()).to(x.dtype)
        product = product if self.bias is None else product + self.bias
        return product.view(*x.shape[:-1], -1)

    @property
    def weight(self) -> Tensor:
        """[out, in] the rounded weight; where the kernel is used it is decoded anew at each call."""
        return self._decoded() if self._dense is None else self._dense

    @property
    def forward_bytes(self) -> int:
        """Bytes that the product of a few rows reads."""
        if self._dense is not None:
            return self._dense.nbytes
        return self._codes.nbytes * self._bits // 8 + self._steps.nbytes

    def _few(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            packed, steps = self._packed
            four: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, self._group, steps)
            return four
        # The kernel rounds its scales to bfloat16: it gets ones, and the steps come afterwards.
        return torch._weight_int8pack_mm(x, self._codes, self._ones) * self._steps.squeeze(1)

    def _decoded(self) -> Tensor:
        if self._steps.shape[1] == 1:
            return (self._codes * self._steps).to(self._dtype)
        steps = self._steps.repeat_interleave(self._group, dim=1)[:, : self._codes.shape[1]]
        return (self._codes * steps).to(self._dtype)

    def _pack(self) -> tuple[Tensor, Tensor]:
        """(codes as the kernel lays them, [groups, out, 2] steps and offsets)."""
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(self._codes.int() + 8, 1)
        steps = self._steps.T.contiguous()
        return packed, torch.stack([steps, torch.zeros_like(steps)], dim=-1).bfloat16()


class RoundedLinear(nn.Module):
    """A linear layer of rounded weights.

    Args:
        product: of this layer, or of several one under the other.
        rows: which of its rows are this layer's; it then multiplies with the decoded weight. None: all.
    """

    def __init__(self, product: RoundedProduct, rows: slice | None = None) -> None:
        super().__init__()
        self._product, self._rows = product, rows

    @property
    def weight(self) -> Tensor:
        """[out, in], decoded."""
        return self._product.weight[self._rows or slice(None)]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if self._rows is None:
            return self._product(x)
        bias = None if self._product.bias is None else self._product.bias[self._rows]
        return nn.functional.linear(x, self.weight, bias)


def needed_bytes(weight: Tensor, bits: int, group: int) -> int:
    """What a rounded product keeps of a weight [out, in]; its steps are left out."""
    if not _has_kernel(weight, bits, group if bits == 4 else weight.shape[1]):
        return weight.numel() + weight.nbytes
    return weight.numel() * (8 + (bits if bits == 4 else 0)) // 8


def _rounded(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """([out, in] int8 codes, [out, groups] steps); a last group may be shorter."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    out, width = weight.shape
    padded = nn.functional.pad(weight.to(wide), (0, -width % group)).view(out, -1, group)
    largest = padded.abs().amax(-1, keepdim=True)
    steps = largest / STEPS[bits]
    if bits == 4:
        # The kernel takes steps in bfloat16: round to those, so that all forms are of one weight.
        steps = steps.bfloat16().to(wide)
    codes = (padded / steps.clamp_min(torch.finfo(wide).tiny)).round().clamp(-STEPS[bits], STEPS[bits])
    return codes.to(torch.int8).view(out, -1)[:, :width].contiguous(), steps.squeeze(-1)


def _has_kernel(weight: Tensor, bits: int, group: int) -> bool:
    """Whether torch multiplies codes of this form on this device; the same answer on every call."""
    if weight.device.type != "cpu" or weight.dtype not in _KERNEL_DTYPES or weight.shape[1] % _WIDTH:
        return False
    if not hasattr(torch, "_weight_int8pack_mm"):  # private, as is the other
        return False
    return bits == 8 or (
        group in _GROUPS and weight.shape[1] % group == 0 and weight.shape[0] % _FOUR_BIT_ROWS == 0
    )


_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Quantised:
    """A model of rounded weights.

    Norms, embeddings and what is no plain matrix (a mixture's router) are the original's, not rounded.

    Attributes:
        model: to score with; a KV cache of its own.
        products: its matrix products.
    """

    model: CausalLM
    products: list[RoundedProduct]

    @property
    def forward_bytes(self) -> int:
        """Bytes of weights that a forward of a few tokens reads."""
        return memory.forward_bytes(self.model.model) + sum(part.forward_bytes for part in self.products)

    def with_own_cache(self) -> CausalLM:
        """The same model once more, remembering nothing."""
        return self.model.twin(self.model.model, lambda direct: direct)


def quantised(original: CausalLM, bits: int, group: int, flag: str) -> Quantised:
    """Round the matrices of a model; it stays as it is.

    Args:
        original: as loaded, not quantised.
        bits: 8 or 4.
        group: how many neighbours in a row share a step at 4 bits.
        flag: the command-line flag that asked for it.

    Raises:
        UsageError: its weights are quantised already or mostly no plain matrices, or there is no memory
            for the copy.
    """
    _require_matrices(original, flag)
    _require_room(original, bits, group, flag)
    products: list[RoundedProduct] = []
    parts: dict[int, RoundedLinear] = {}

    def round_one(weight: Tensor, bias: Tensor | None) -> RoundedProduct:
        products.append(RoundedProduct(weight, bias, bits, group))
        return products[-1]

    def round_product(product: PackedLinear) -> RoundedProduct:
        rounded, first = round_one(product.weight, product.bias), 0
        for layer in product.layers:
            parts[id(layer)] = RoundedLinear(rounded, slice(first, first + len(layer.weight)))
            first += len(layer.weight)
        return rounded

    def swap(module: nn.Module) -> nn.Module | None:
        matrix = None if id(module) in parts else _matrix(module)
        return parts.get(id(module)) if matrix is None else RoundedLinear(round_one(*matrix))

    model = original.twin(None, lambda direct: direct.multiplying(round_product))
    model.model = rebuilt(original.model, swap)
    return Quantised(model, products)


def _matrix(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """([out, in] weight, bias) of a linear layer of a known kind; None of any other module."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, PackedModule) or _is_linear(module):
        return module.weight, module.bias
    return (module.weight.T, module.bias) if isinstance(module, Conv1D) else None


def _is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """A subclass may do anything (a router returns two tensors)."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _matrices(original: CausalLM) -> list[Tensor]:
    """What would be rounded, [out, in] each."""
    if original.linears is not None:
        return [product.weight for product in original.linears]
    return [matrix[0] for matrix in map(_matrix, original.model.modules()) if matrix is not None]


def _require_matrices(original: CausalLM, flag: str) -> None:
    """Refuse what is quantised already, and what keeps most of its weights out of plain matrices."""
    name = type(original.model).__name__
    if getattr(original.model, "is_quantized", False):
        raise UsageError(
            f"the weights of {name} are quantised already.", flag=flag, remedy="Choose another drafter."
        )
    rounded = sum(weight.numel() for weight in _matrices(original))
    embedded = original.model.get_input_embeddings().weight.numel()
    rest = sum(parameter.numel() for parameter in original.model.parameters()) - embedded
    if rounded < rest / 2:
        raise UsageError(
            f"only {rounded} of the {rest} weights of {name} are in plain matrices, which can be rounded.",
            flag=flag,
            remedy="Choose another drafter.",
        )


def _require_room(original: CausalLM, bits: int, group: int, flag: str) -> None:
    """Refuse a copy that the device has no memory for."""
    name = type(original.model).__name__
    needed = sum(needed_bytes(weight, bits, group) for weight in _matrices(original))
    free = available_bytes(original.device)
    if free is not None and needed > free:
        raise UsageError(
            f"a copy of {name} at {bits} bits needs {needed} bytes ({needed / _GIB:.3g} GiB), "
            f"{original.device.type} has {free} ({free / _GIB:.3g} GiB) free.",
            flag=flag,
            remedy="Choose a smaller target, or another drafter.",
        )

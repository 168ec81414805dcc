"""A copy of a model with its matrices rounded to 8 or 4 bits; all else is shared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from torch import Tensor, nn

from spsbench.errors import UsageError
from spsbench.models import memory
from spsbench.models.causal_lm import CausalLM
from spsbench.models.packed_linear import PackedLinear, PackedModule
from spsbench.models.rounded import RoundedLinear, RoundedProduct, needed_bytes
from spsbench.models.twin import rebuilt
from spsbench.models.weights import available_bytes

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

"""Linear layers in one of two forms: torch's own, and oneDNN's with weights packed beforehand.

On a CPU, torch's plain float32 product of a few rows can cost several times that of one row, and
speculative sampling scores K+1 at once. Packed weights level that, but one row may get slower. Which
of the two a run uses is a setting of the run and recorded with it. If a timing at load decided, two
processes could differ, and with them the last bits of every logit (ADR 0012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spsbench.config.models import PACKED, PLAIN
from spsbench.errors import UsageError
from spsbench.models.weights import available_bytes

if TYPE_CHECKING:
    from spsbench.models.causal_lm import CausalLM

# Smaller models keep both forms: a second copy costs little.
_SMALL_PARAMETERS = 100_000_000
_GIB = 1 << 30


class KernelMode:
    """Which kernels the linear layers of a model use now.

    Attributes:
        packed: whether they use packed weights, where there are any.
    """

    def __init__(self) -> None:
        self.packed = False

    @contextmanager
    def stock(self) -> Iterator[None]:
        """Plain kernels inside the block: what transformers' ``generate()`` is measured with."""
        packed, self.packed = self.packed, False
        try:
            yield
        finally:
            self.packed = packed


class PackedLinear:
    """x W^T + b with a plain weight and, after ``pack``, a packed one.

    Args:
        weight: [out, in] of one layer, or of several concatenated.
        bias: [out], or None.
        mode: shared by all linear layers of the model.
        layers: the model's layers whose weights it holds, in order.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        mode: KernelMode,
        layers: Sequence[nn.Linear] = (),
    ) -> None:
        self.bias = bias
        self._plain: Tensor | None = weight
        self._packed: Tensor | None = None
        self._mode = mode
        self.layers = list(layers)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        if self._packed is not None and (self._mode.packed or self._plain is None):
            return _packed_product(x, self._packed, self.bias)
        return nn.functional.linear(x, self.weight, self.bias)

    @property
    def weight(self) -> Tensor:
        """[out, in]; unpacked on every access if only the packed form is kept."""
        if self._plain is not None:
            return self._plain
        assert self._packed is not None
        return self._packed.to_dense()

    @property
    def second_copy_bytes(self) -> int:
        """Size of the packed form if the plain one is kept too, else 0."""
        return 0 if self._plain is None or self._packed is None else self._plain.nbytes

    def pack(self) -> None:
        """Add the packed form; the plain one is kept."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 8)

    def drop_plain(self) -> None:
        """Free the plain form, in the model's layers too.

        These keep a parameter of the same shape without storage, so that sizes are counted as before,
        and unpack the weight whenever the model's own forward runs: slow, but exact.
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
        """The output of one of the concatenated layers."""
        return nn.functional.linear(x, self.weight.narrow(0, first, rows), bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether the private oneDNN operators exist and support this dtype."""
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


class PackedModule(nn.Module):
    """A ``PackedLinear`` that replaces a linear layer of a model.

    Args:
        linear: the layer to replace.
        mode: shared by all linear layers of the model.
    """

    def __init__(self, linear: nn.Linear, mode: KernelMode) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.linear = PackedLinear(linear.weight, linear.bias, mode)

    def forward(self, x: Tensor) -> Any:
        return self.linear(x)


def use_kernels(model: CausalLM, kernels: str, *, keep_plain: bool = True) -> str:
    """Choose the kernels of a model that has plain ones so far.

    Args:
        model: changed in place.
        kernels: ``plain`` or ``packed``.
        keep_plain: whether the model's own layers are used often too. If not, a large packed model
            frees its plain weights.

    Returns:
        the kernels in use: ``plain`` also if this device, dtype or torch build has no packed form.

    Raises:
        UsageError: not enough memory for the packed form. With a fallback, the logits would depend on
            what else the machine is doing.
    """
    if kernels == PLAIN or model.device.type != "cpu" or not can_pack(model.model.dtype):
        return PLAIN
    _require_room(model)
    linears = _swap(model.model, model.mode) if model.linears is None else model.linears
    for linear in linears:
        linear.pack()
    model.mode.packed = bool(linears)
    if linears and not keep_plain:
        _drop_plain(model)
    return PACKED if linears else PLAIN


def _drop_plain(model: CausalLM) -> None:
    """Free the plain weights of a large model that ``LlamaForward`` computes."""
    inner = model.model
    if sum(parameter.numel() for parameter in inner.parameters()) < _SMALL_PARAMETERS:
        return
    for linear in model.linears or ():
        if linear.weight is not inner.get_input_embeddings().weight:  # a tied head is the embedding table too
            linear.drop_plain()


def _require_room(model: CausalLM) -> None:
    free = available_bytes(model.device)
    size = sum(parameter.nbytes for parameter in model.model.parameters())
    if free is not None and size > free:
        raise UsageError(
            f"packed weights need {size / _GIB:.3g} GiB more, but {free / _GIB:.3g} GiB are free.",
            flag="--kernels",
            remedy="Use --kernels plain.",
        )


def _swap(model: nn.Module, mode: KernelMode) -> list[PackedLinear]:
    """Replace the linear layers of a model."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    layers = [(parent, name, PackedModule(linear, mode)) for parent, name, linear in found]
    for parent, name, layer in layers:
        setattr(parent, name, layer)
    return [layer.linear for *_, layer in layers]

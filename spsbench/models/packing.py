"""Matrix products in oneDNN's packed form, where a run asks for them.

On a CPU, torch's plain float32 product of a few rows can cost several times that of one row, and
speculative sampling scores K+1 at once. Packed weights level that, but one row may get slower. Which
of the two a run uses is a setting of the run, recorded with it: a choice by a timing at load would
differ between two processes, and with it the last bits of every logit (ADR 0012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from spsbench.config.kernels import PACKED, PLAIN
from spsbench.errors import UsageError
from spsbench.models.product import Modes, Product, ProductLinear, can_pack
from spsbench.models.weights import available_bytes

if TYPE_CHECKING:
    from spsbench.models.causal_lm import CausalLM

# Below this a second copy does not matter, and the plain one is at hand.
_SMALL_PARAMETERS = 100_000_000
_GIB = 1 << 30


def use_kernels(model: CausalLM, kernels: str, *, keep_plain: bool = True) -> str:
    """Multiply plain or packed from now on.

    Args:
        model: plain so far.
        kernels: ``plain`` or ``packed``.
        keep_plain: whether others multiply with the model's own layers, and often. If not, a large
            packed model lets go of its plain weights.

    Returns:
        what is used: ``plain`` also where this device, dtype or torch has no packed form.

    Raises:
        UsageError: there is no memory for the packed form. Falling back would change the logits from
            one run to the next with whatever else the machine is doing.
    """
    if kernels == PLAIN or model.device.type != "cpu" or not can_pack(model.model.dtype):
        return PLAIN
    _require_room(model)
    products = _swap(model.model, model.modes) if model.products is None else model.products
    for product in products:
        product.pack()
    model.modes.packed = bool(products)
    if products and not keep_plain:
        _let_plain_go(model)
    return PACKED if products else PLAIN


def _let_plain_go(model: CausalLM) -> None:
    """Keep the packed form alone where the forward is ours and the model large."""
    inner = model.model
    if sum(parameter.numel() for parameter in inner.parameters()) < _SMALL_PARAMETERS:
        return
    for product in model.products or ():
        if product.weight is not inner.get_input_embeddings().weight:  # a tied head is looked up as well
            product.keep_packed_alone()


def _require_room(model: CausalLM) -> None:
    free = available_bytes(model.device)
    size = sum(parameter.nbytes for parameter in model.model.parameters())
    if free is not None and size > free:
        raise UsageError(
            f"packed weights need {size / _GIB:.3g} GiB more, {free / _GIB:.3g} GiB are free.",
            flag="--kernels",
            remedy="Use plain.",
        )


def _swap(model: nn.Module, modes: Modes) -> list[Product]:
    """Put products in the place of linear layers."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    layers = [(parent, name, ProductLinear(linear, modes)) for parent, name, linear in found]
    for parent, name, layer in layers:
        setattr(parent, name, layer)
    return [layer.product for *_, layer in layers]

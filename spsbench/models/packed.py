"""Linear layers in bfloat16 whose weights are laid out once for the CPU's kernels.

oneDNN multiplies by weights in blocks. Of plain rows torch makes such blocks at every product, which for
a few tokens takes as long as the product itself. The numbers are the same, in another order in memory, and
stand in place of the rows. An output head stays as it is: it shares its weights with an embedding, and
drafters read them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.models.body import head_of

_ROUNDING = 2.0**-5
"""Of the largest logit: above what another order of sums in bfloat16 moves one, below another model."""

_TOKENS = 3


class PackedLinear(nn.Linear):
    """``nn.Linear`` over a weight [out, in] in oneDNN's layout, which ``to_dense`` gives back bit for bit.

    Its copy is a plain ``nn.Linear``: one that may be cast to another dtype.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[..., out] of [..., in]."""
        if not input.numel():  # an expert that no token is for
            return input.new_empty((*input.shape[:-1], self.out_features))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
        return product

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        plain = memo[id(self)] = nn.Linear.__new__(nn.Linear)
        parameters = self._parameters | {"weight": nn.Parameter(_dense(self), requires_grad=False)}
        plain.__dict__.update(copy.deepcopy(self.__dict__ | {"_parameters": parameters}, memo))
        return plain


def pack_layers(model: Any, width: int | None = None) -> int:
    """Lay the linear layers of a model in bfloat16 on a CPU out for oneDNN; return how many.

    A short forward before and after has to give the same logits, or states; of a model that reads its layers'
    weights by itself, or on a processor without the instructions, all stay as they were.

    Args:
        width: of the states that a drafter's body reads instead of ids; it has no output head.
    """
    parts = [*_packable(model)]
    if not parts or (before := _outputs(model, width)) is None:
        return 0
    for part in parts:
        _replace(part, PackedLinear, torch.ops.mkldnn._reorder_linear_weight(part.weight.detach(), 1))
    after = _outputs(model, width)
    if after is not None and bool(((after - before).abs() <= _ROUNDING * before.abs().max()).all()):
        return len(parts)
    for part in parts:
        _replace(part, nn.Linear, _dense(part))
    return 0


def _packable(model: Any) -> Iterator[nn.Linear]:
    if not _has_kernels():
        return
    head = head_of(model)
    users: dict[int, int] = {}
    for part in model.modules():
        for weight in part.parameters(recurse=False):
            users[id(weight)] = users.get(id(weight), 0) + 1
    for part in model.modules():
        # A class of its own may read its weight by itself.
        if type(part) is nn.Linear and part is not head and users[id(part.weight)] == 1:
            weight = part.weight
            if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.numel():
                yield part


def _has_kernels() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _dense(part: nn.Linear) -> Tensor:
    rows: Tensor = part.weight.detach().to_dense()
    return rows


def _replace(part: nn.Linear, kind: type[nn.Linear], weight: Tensor) -> None:
    part.__class__ = kind
    part.weight = nn.Parameter(weight, requires_grad=False)


@torch.no_grad()
def _outputs(model: Any, width: int | None) -> Tensor | None:
    """[3, V] of a few tokens in float32, of a body its states; None where that fails, or needs more."""
    try:
        if width is None:
            outputs: Tensor = model(torch.arange(1, 1 + _TOKENS)[None], use_cache=False).logits[0]
        else:
            waves = torch.arange(_TOKENS * width).view(1, _TOKENS, width).sin().to(torch.bfloat16)
            outputs = model(inputs_embeds=waves, use_cache=False).last_hidden_state[0]
    except Exception:  # whatever it is, what runs stays what it was
        return None
    return outputs.float()

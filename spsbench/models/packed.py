"""Linear layers in bfloat16 whose weights are laid out once for the CPU's kernels.

oneDNN multiplies by weights in blocks. Of plain rows torch makes such blocks at every product, which for
a few tokens takes as long as the product itself. The numbers are the same, in another order in memory, and
stand in place of the rows. Layers of a module that are given the same states (queries, keys and values; gate
and up) are one product, since the start of a small one costs as much as its numbers. An output head that
shares its weight with the embedding keeps the rows beside the blocks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.models.attention import group_queries
from spsbench.models.body import head_of
from spsbench.models.onednn import can_be_laid_out, laid_out, product
from spsbench.models.packed_experts import experts_in, pack_experts, unpack_experts

_ROUNDING = 2.0**-5
"""Of the largest logit: above what another order of sums in bfloat16 moves one, below another model."""

_TOKENS = 3


class PackedLinear(nn.Linear):
    """``nn.Linear`` that takes its rows of a product, the weight of which is in oneDNN's layout.

    Its copy is a plain ``nn.Linear``: one that may be cast to another dtype.
    """

    product: JoinedProduct
    rows: slice
    is_last: bool
    """Of the product's layers in a forward."""

    def forward(self, input: Tensor) -> Tensor:
        if not input.numel():  # an expert that no token is for
            return input.new_empty((*input.shape[:-1], self.out_features))
        return self.product.of(input, self.is_last)[..., self.rows]

    def __copy__(self) -> nn.Linear:
        plain = nn.Linear.__new__(nn.Linear)
        plain.__dict__.update(self._plain())
        return plain

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        plain = memo[id(self)] = nn.Linear.__new__(nn.Linear)
        plain.__dict__.update(copy.deepcopy(self._plain(), memo))
        return plain

    def _plain(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in PackedLinear.__annotations__}
        if self.weight.is_mkldnn:
            weight = nn.Parameter(stored_weight(self), requires_grad=False)
            kept["_parameters"] = self._parameters | {"weight": weight}
        return kept


class JoinedProduct:
    """Weights [out of all, in] and biases [out of all] of layers that are given the same states."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.width = sum(layer.out_features for layer in layers)
        self.weight = laid_out(torch.cat([layer.weight.detach() for layer in layers]))
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self._last: tuple[Tensor, Tensor] | None = None

    def of(self, states: Tensor, is_last: bool) -> Tensor:
        """[..., out of all] of [..., in]: computed for the first layer and kept until the last."""
        last = self._last
        out = last[1] if last is not None and last[0] is states else product(states, self.weight, self.bias)
        self._last = None if is_last else (states, out)
        return out


def stored_weight(layer: nn.Linear) -> Tensor:
    """[out, in] of a layer as its checkpoint has it: a copy where it is laid out otherwise."""
    weight = layer.weight.detach()
    if isinstance(layer, PackedLinear) and weight.is_mkldnn:
        return weight.to_dense()[layer.rows]
    return weight


def pack_layers(model: Any, width: int | None = None) -> int:
    """Lay the linear layers and experts of a model in bfloat16 on a CPU out for oneDNN; count the layers.

    A short forward before and after has to give the same logits, or states; of a model that reads its layers'
    weights by itself, or on a processor without the instructions, all stay as they were.

    Args:
        width: of the states that a drafter's body reads instead of ids; it has no output head.
    """
    layers = [*_packable_layers(model, head_of(model))]
    with _inputs_of(layers) as inputs:
        before = _outputs(model, width) if layers else None
    if before is None:
        return 0
    body = [[layer] for layer in layers if layer is not head_of(model)]
    embedding = getattr(model.get_input_embeddings(), "weight", None)
    for groups, experts in ((_layers_by_product(model, layers, inputs), [*experts_in(model)]), (body, [])):
        for group in groups:
            _pack(group, embedding)
        for each in experts:
            pack_experts(each)
        after = _outputs(model, width)
        if after is not None and bool(((after - before).abs() <= _ROUNDING * before.abs().max()).all()):
            return sum(map(len, groups))
        for layer in itertools.chain.from_iterable(groups):
            _unpack(layer)
        for each in experts:
            unpack_experts(each)
    return 0


def fitted(body: Any, width: int) -> Any:
    """Return a drafter's body that reads states of a width, as its device computes it fastest."""
    body.eval().requires_grad_(False)
    pack_layers(body, width)
    group_queries(body)
    return body


def pack_called(net: nn.Module) -> None:
    """Lay out the linear layers of a net that calls them all and reads no weight by itself."""
    for layer in [*_packable_layers(net, None)]:
        _pack([layer], None)


def _packable_layers(model: nn.Module, head: Any) -> Iterator[nn.Linear]:
    """Those that own their weights, and a plain head."""
    users: dict[int, int] = {}
    for part in model.modules():
        for weight in part.parameters(recurse=False):
            users[id(weight)] = users.get(id(weight), 0) + 1
    for part in model.modules():
        # A class of its own may read its weight by itself.
        if type(part) is not nn.Linear or not can_be_laid_out(part.weight):
            continue
        if part is head or users[id(part.weight)] == 1:
            yield part


@contextmanager
def _inputs_of(layers: Sequence[nn.Linear]) -> Iterator[dict[nn.Linear, list[Tensor]]]:
    """What each layer is given, in the order of the calls, while the context lasts."""
    inputs: dict[nn.Linear, list[Tensor]] = {}

    def hear(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        inputs.setdefault(layer, []).extend(args)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(hear).remove)
        yield inputs


def _layers_by_product(
    model: Any, layers: Sequence[nn.Linear], inputs: dict[nn.Linear, list[Tensor]]
) -> list[list[nn.Linear]]:
    """In the order of their calls.

    Together are those of one module that a forward gives one tensor, once. A head that is not called is left
    out: something else multiplies by its weight.
    """
    parents = {child: part for part in model.modules() for child in part.children()}
    head = head_of(model)
    groups: dict[Any, list[nn.Linear]] = {}
    for layer in [*inputs, *(layer for layer in layers if layer not in inputs and layer is not head)]:
        given = inputs.get(layer, [])
        is_once = len(given) == 1
        key = (parents[layer], id(given[0]), layer.bias is None) if is_once else layer
        groups.setdefault(key, []).append(layer)
    return [*groups.values()]


def _pack(layers: Sequence[nn.Linear], embedding: Tensor | None) -> None:
    joined, start = JoinedProduct(layers), 0
    for layer in layers:
        layer.__class__ = PackedLinear
        assert isinstance(layer, PackedLinear)
        layer.product, layer.is_last = joined, layer is layers[-1]
        layer.rows = slice(start, start := start + layer.out_features)
        if layer.weight is not embedding:
            layer.weight = joined.weight


def _unpack(layer: nn.Linear) -> None:
    layer.__dict__ = copy.copy(layer).__dict__
    layer.__class__ = nn.Linear


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

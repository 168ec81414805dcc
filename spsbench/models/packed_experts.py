"""Experts of a mixture in bfloat16 whose weights are laid out once for the CPU's kernels.

transformers keeps the weights of all experts of a layer in one tensor, and a grouped product on a CPU calls
each expert, also for no token. Here each has a weight of its own in oneDNN's layout, in place of its slice,
and is called for the tokens that take it. Sums are in the order of those of the grouped product.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from spsbench.models.onednn import can_be_laid_out, laid_out, product


class PackedExperts(nn.Module):
    """A layer's experts, before their class of transformers; a copy is of that class, with plain weights."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[n, hidden] of [n, hidden], by experts [n, k] and their weights [n, k]."""
        rows, per_token = top_k_index.shape
        if rows == 1:  # each expert that it takes has one token
            experts, order = top_k_index.reshape(-1), None
            taken, counts = experts.tolist(), [1] * per_token
            tokens = hidden_states.expand(per_token, -1)
        else:
            experts, order = torch.sort(top_k_index.reshape(-1))
            taken, counts = (each.tolist() for each in torch.unique_consecutive(experts, return_counts=True))
            tokens = hidden_states[order // per_token]
        own: Any = self

        def products(name: str, states: Tensor) -> Tensor:
            layers: Sequence[Tensor] = getattr(own, name)
            parts = zip(taken, torch.split(states, counts), strict=True)
            states = torch.cat([product(part, layers[expert]) for expert, part in parts])
            return states + getattr(own, f"{name}_bias")[experts] if own.has_bias else states

        gate_or_act: Callable[[Tensor], Tensor] = own._apply_gate if own.has_gate else own.act_fn
        states = products(_names(own)[0], tokens)
        states = products(_names(own)[1], gate_or_act(states))
        if own.has_post_expert_norm:
            states = own.post_expert_norm(states)
        weights = top_k_weights.reshape(-1)
        states = states * (weights if order is None else weights[order]).unsqueeze(-1)
        if order is not None:
            states = states[order.argsort()]
        states = states.view(rows, per_token, -1)
        return states.sum(dim=1).to(hidden_states.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        plain = memo[id(self)] = nn.Module.__new__(_plain_kind(self))
        plain.__dict__.update(copy.deepcopy(_attributes_before_packing(self), memo))
        return plain


def experts_in(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers' experts that can be packed: of transformers' interface, in bfloat16 on the CPU."""
    for part in model.modules():
        is_known = hasattr(part, "has_gate") and not getattr(part, "_is_expert_parallel", True)
        if is_known and all(_is_packable(part._parameters.get(name)) for name in _names(part)):
            yield part


def pack_experts(experts: nn.Module) -> None:
    kind: Any = experts.__class__
    own: Any = experts
    for name in _names(experts):
        stored = getattr(experts, name).detach()
        layers = [laid_out(each.T if own.is_transposed else each) for each in stored]
        delattr(experts, name)
        setattr(experts, name, nn.ParameterList(layers))
    experts.__class__ = type(kind.__name__, (PackedExperts, kind), {})


def unpack_experts(experts: nn.Module) -> None:
    kind = _plain_kind(experts)
    experts.__dict__ = _attributes_before_packing(experts)
    experts.__class__ = kind


def _plain_kind(experts: nn.Module) -> type[nn.Module]:
    kinds = (kind for kind in type(experts).__mro__ if not issubclass(kind, PackedExperts))
    return cast(type[nn.Module], next(kinds))


def _attributes_before_packing(experts: nn.Module) -> dict[str, Any]:
    own: Any = experts
    modules, parameters = dict(experts._modules), dict(experts._parameters)
    for name in _names(experts):
        layers = [layer.detach().to_dense() for layer in own.get_submodule(name)]
        stored = torch.stack([layer.T if own.is_transposed else layer for layer in layers])
        del modules[name]
        parameters[name] = nn.Parameter(stored, requires_grad=False)
    return vars(experts) | {"_modules": modules, "_parameters": parameters}


def _names(experts: Any) -> tuple[str, str]:
    return "gate_up_proj" if experts.has_gate else "up_proj", "down_proj"


def _is_packable(weight: Tensor | None) -> bool:
    return weight is not None and can_be_laid_out(weight) and weight.dim() == 3

"""A second model of the same tensors, with some of its modules in place of others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from spsbench.errors import UsageError
from spsbench.models.causal_lm import text_config

Swap = Callable[[nn.Module], nn.Module | None]
"""What stands in place of a module; None where it and what is in it are rebuilt."""


def rebuilt(module: nn.Module, swap: Swap) -> Any:
    """A tree of modules as this one; every tensor that is not swapped away is shared, not copied."""
    known: dict[int, nn.Module] = {}

    def again(part: nn.Module) -> nn.Module:
        if id(part) not in known:
            known[id(part)] = swap(part) or shallow(part)
        return known[id(part)]

    def shallow(part: nn.Module) -> nn.Module:
        twin = copy.copy(part)
        children = {name: None if child is None else again(child) for name, child in part._modules.items()}
        twin.__dict__["_modules"] = children
        return twin

    return again(module)


def truncated(model: nn.Module, layers: int, flag: str) -> nn.Module:
    """The first layers of a model under its own final norm and head; every tensor is shared."""
    path, found = _layer_list(model, text_config(model.config).num_hidden_layers, flag)
    first = nn.ModuleList(list(found)[:layers])
    inner: nn.Module = rebuilt(model, lambda part: first if part is found else None)
    _shorten_configs(inner, path, layers)
    return inner


def _layer_list(model: nn.Module, layers: int, flag: str) -> tuple[str, nn.ModuleList]:
    """(path, list) of the decoder layers: the one outermost list of the configured length."""
    lists = [
        (path, part)
        for path, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == layers
    ]
    outer = [item for item in lists if not any(item[0].startswith(f"{path}.") for path, _ in lists)]
    if len(outer) == 1:
        return outer[0]
    raise UsageError(
        f"{type(model).__name__} keeps its {layers} layers in {len(outer)} lists, not in one.",
        flag=flag,
        remedy="Choose another drafter.",
    )


def _shorten_configs(model: nn.Module, path: str, layers: int) -> None:
    """Set the number of layers in the modules above them; the layers keep the configuration they have."""
    names = path.split(".")
    for depth in range(len(names)):
        part = model.get_submodule(".".join(names[:depth]))
        if "config" in part.__dict__:
            config = copy.deepcopy(part.__dict__["config"])
            text = text_config(config)
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
            text.num_hidden_layers = layers
            part.__dict__["config"] = config

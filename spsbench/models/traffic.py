"""Bytes that one forward of a loaded model reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spsbench.core.theory import union_share
from spsbench.models.causal_lm import text_config

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a mixture: a forward reads the union of those that its rows activate.

    Attributes:
        bytes: of all of them, in all layers.
        count: in a layer.
        per_token: that one token activates.
    """

    bytes: int
    count: int
    per_token: int


def forward_bytes(model: Any, rows: int = 1) -> int:
    """Bytes of weights that a forward of a few tokens reads.

    All of them, but of an input embedding that is not also the output's only a few rows: it is left
    out. Of a mixture's experts the expected union, see ``union_share``.

    Args:
        model: a loaded ``PreTrainedModel``.
        rows: tokens that are scored at once.
    """
    total = sum(parameter.nbytes for parameter in model.parameters())
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outer is None or inner is None or outer.weight is inner.weight
    total = total if tied else total - inner.weight.nbytes
    experts = experts_of(model)
    if experts is None:
        return int(total)
    return int(total - experts.bytes * (1.0 - union_share(experts.count, experts.per_token, rows)))


def experts_of(model: Any) -> Experts | None:
    """The routed experts of a model; None if it has none."""
    config = text_config(model.config)
    count = _first(config, _EXPERT_COUNTS)
    per_token = _first(config, _EXPERTS_PER_TOKEN)
    size = sum(parameter.nbytes for name, parameter in model.named_parameters() if ".experts." in name)
    return Experts(size, count, per_token) if count and per_token and size else None


def kv_bytes_per_token(model: Any) -> int | None:
    """Bytes of keys and values that a forward reads for each token in the cache; None if not told."""
    config = text_config(model.config)
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, hidden = (getattr(config, name, None) for name in names)
    if not (layers and heads and hidden):
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or hidden // heads
    return int(2 * layers * kv_heads * width * model.dtype.itemsize)


def _first(config: Any, names: tuple[str, ...]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((int(value) for value in found if isinstance(value, int)), 0)

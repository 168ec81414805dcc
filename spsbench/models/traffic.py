"""Bytes that one forward of a loaded model reads."""

from __future__ import annotations

from typing import Any

from spsbench.models.causal_lm import text_config


def forward_bytes(model: Any) -> int:
    """Bytes of weights that a forward of a few tokens reads.

    All of them, but of an input embedding that is not also the output's only a few rows: it is left
    out. For a mixture of experts this is an upper bound, since a token reads a part of them.

    Args:
        model: a loaded ``PreTrainedModel``.
    """
    total = sum(parameter.nbytes for parameter in model.parameters())
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outer is None or inner is None or outer.weight is inner.weight
    return int(total if tied else total - inner.weight.nbytes)


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

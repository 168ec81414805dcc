"""What a configuration says of each layer, where its layers differ (Gemma 3n and 4, DeepSeek, hybrids)."""

from __future__ import annotations

from typing import Any

STATEFUL = ("linear", "mamba", "conv", "recurrent", "recurrence", "moe", "mlp", "ssm")
"""Parts of the names of layers that keep no row of keys and values per token."""


def by_layer(text: Any, name: str) -> list[Any]:
    """Return a field of a text configuration for each of its layers; None where it is not there.

    It may stand in the configuration, in a list with a place for each layer, or in the layer's own
    configuration, beside which transformers refuses to tell one of them all.
    """
    count = layer_count(text)
    own = text.per_layer_config if getattr(text, "is_heterogeneous", False) else [text] * count
    values = [getattr(layer, name, None) for layer in own]
    return [
        value[i] if isinstance(value, (list, tuple)) and len(value) == count else value
        for i, value in enumerate(values)
    ]


def layer_count(text: Any) -> int:
    return int(getattr(text, "num_hidden_layers", None) or 0)


def cache_widths(text: Any) -> list[int]:
    """Return how many numbers each layer keeps of a token: its keys and values.

    A layer of latent attention keeps the latent and the rotated part of its keys, one that takes the keys of
    an earlier layer, or keeps a state, nothing. Empty where the configuration does not say.
    """
    count = layer_count(text)
    names = (
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "v_head_dim",
    )
    fields = zip(*(by_layer(text, name) for name in names), strict=True)
    kinds = by_layer(text, "layer_types")
    shared = getattr(text, "num_kv_shared_layers", None) or 0
    widths = []
    for index, (heads, groups, head, hidden, latent, rotated, value) in enumerate(fields):
        if kinds[index] == "sliding_attention":  # which some configurations give sizes of their own
            groups, head, value = (
                getattr(text, f"swa_{name}", None) or usual
                for name, usual in (
                    ("num_key_value_heads", groups),
                    ("head_dim", head),
                    ("v_head_dim", value),
                )
            )
        if not heads or not hidden:
            return []
        if index >= count - shared or any(part in str(kinds[index]) for part in STATEFUL):
            widths.append(0)
        elif isinstance(latent, int) and latent:
            widths.append(latent + (rotated or 0))
        else:
            head = head or hidden // heads
            widths.append((groups or heads) * (head + (value or head)))
    return widths


def widest(text: Any, name: str) -> int:
    """Return the largest value of a field over the layers; 0 where none says."""
    return max((int(value) for value in by_layer(text, name) if isinstance(value, (int, float))), default=0)


def windows(text: Any) -> list[int]:
    """Return the windows, in tokens, of the layers that see a part of the text only."""
    names = ("sliding_window", "attention_chunk_size", "window_size", "sliding_window_size")
    found = (value for name in names for value in by_layer(text, name) or [getattr(text, name, None)])
    return [value for value in found if isinstance(value, int) and value > 0]

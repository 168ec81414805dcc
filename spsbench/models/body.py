"""Where a transformers model keeps what stands before its output head, whatever its architecture calls it."""

from __future__ import annotations

from typing import Any

from torch import nn


def body_of(model: Any) -> Any:
    """Return the part of a model that gives its head the states of all tokens; the model itself without one.

    Some models do not declare it, and some call their head a decoder (ModernBERT's).
    """
    head, body = head_of(model), model.get_decoder()
    if body is model or body is head:
        return getattr(model, "model", model)
    if head is not None and any(part is head for part in body.modules()):  # a language model within
        inner = body_of(body)
        return model if inner is body else inner
    return body


def head_of(model: Any) -> Any:
    """Return a model's output head, None without one; where a wrapper declares none, its language model's."""
    head, body = model.get_output_embeddings(), model.get_decoder()
    if head is None and body is not model and hasattr(body, "get_output_embeddings"):
        head = body.get_output_embeddings()
    return head


def final_norm_in(body: Any) -> str:
    """Return the name of the norm before the output head in a model's body; empty without one."""
    return next((name for name in _FINAL_NORMS if isinstance(getattr(body, name, None), nn.Module)), "")


_FINAL_NORMS = ("norm", "norm_f", "final_layernorm", "ln_f")
"""What architectures call it."""

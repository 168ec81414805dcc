"""The forward of a Llama-class model without what surrounds its layers.

A call through the model object checks its arguments, builds a mask and rotary tables and wraps its
output anew each time. For a small draft that is half of its time, and it is paid K + 1 times a loop.
Here the layers are called directly with tables that are kept; the arithmetic is the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spsbench.models.cache import RewindCache

# Rotary tables that do not depend on how long the sequence is.
_FIXED_ROPE = {"default", "linear", "llama3"}
_FIRST_POSITIONS = 1024


class DirectForward:
    """Scores tokens through the decoder layers of a model that ``applies_to`` accepts.

    Args:
        model: a ``LlamaForCausalLM``.
    """

    def __init__(self, model: Any) -> None:
        self._inner = model.model
        self._head = model.lm_head
        self._layers = list(model.model.layers)
        self._device = model.device
        self._tables: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def applies_to(model: Any) -> bool:
        """Whether the model's forward is known to be what this class does."""
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            type(model).__name__ == "LlamaForCausalLM"
            and config._attn_implementation == "sdpa"
            and rope.get("rope_type", "default") in _FIXED_ROPE
            and not getattr(model, "is_quantized", False)
        )

    def __call__(self, tokens: Tensor, cache: RewindCache, last: int) -> Tensor:
        """Feed [n] tokens behind the cache; [last, V] logits."""
        start, n = cache.get_seq_length(), tokens.shape[0]
        hidden = F.embedding(tokens.unsqueeze(0), self._inner.embed_tokens.weight)
        position = self._rotary(hidden, start, n)
        mask = self._mask(start, n)
        for layer in self._layers:
            hidden = layer(hidden, attention_mask=mask, past_key_values=cache, position_embeddings=position)
        logits: Tensor = self._head(self._inner.norm(hidden[:, -last:]))[0]
        return logits

    def _rotary(self, like: Tensor, start: int, n: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [1, n, head width] each, of the next n positions."""
        if self._tables is None or self._tables[0].shape[1] < start + n:
            size = max(_FIRST_POSITIONS, 2 * (start + n))
            positions = torch.arange(size, device=self._device).unsqueeze(0)
            self._tables = self._inner.rotary_emb(like, positions)
        cos, sin = self._tables
        return cos[:, start : start + n], sin[:, start : start + n]

    def _mask(self, start: int, n: int) -> Tensor | None:
        """[1, 1, n, start + n] which tokens each may see; None where the kernel knows by itself."""
        if n == 1 or start == 0:
            return None
        seen = torch.ones(n, start + n, dtype=torch.bool, device=self._device).tril_(start)
        return seen[None, None]

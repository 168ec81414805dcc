"""Whether a context fits into the memory of a device, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spsbench.bench.forwards import block_rows
from spsbench.errors import UsageError
from spsbench.models.causal_lm import text_config
from spsbench.models.memory import available_bytes, cache_bytes_per_token

_GIB = 1 << 30
# A cache grows into a buffer twice as large, beside the old one.
_WHILE_GROWING = 2
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Held:
    """What a model takes on its device.

    Attributes:
        weights_bytes: of all its weights.
        width_bytes: of a number in its keys and values.
    """

    config: Any
    weights_bytes: int
    width_bytes: int

    def cache_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens while the cache grows; 0 where the size is not known."""
        return _WHILE_GROWING * tokens * cache_bytes_per_token(self.config, self.width_bytes)

    def attention_bytes(self, tokens: int, at_once: int | None) -> int:
        """Attention scores of one layer while the tokens are read, ``at_once`` or in blocks."""
        heads = getattr(text_config(self.config), "num_attention_heads", None) or 0
        return _FLOAT32_BYTES * heads * tokens * (at_once or block_rows(self.config, tokens))


def require_context_room(
    models: Sequence[Held], context: int, tokens: int, device: torch.device, *, whole: bool
) -> None:
    """Refuse a context whose keys, values and attention scores do not fit beside the weights.

    An upper bound: a fused attention holds less. Where the free memory is not known nothing is refused.
    """
    weights = sum(model.weights_bytes for model in models)
    caches = sum(model.cache_bytes(tokens) for model in models)
    scores = max(model.attention_bytes(context, context if whole else None) for model in models)
    available, needed = available_bytes(device), weights + caches + scores
    if available is not None and needed > available:
        raise UsageError(
            f"after {context} tokens the models need {needed / _GIB:.3g} GiB (weights {weights / _GIB:.3g}, "
            f"keys and values {caches / _GIB:.3g} while the caches grow, attention {scores / _GIB:.3g}), but "
            f"{device.type} has {available / _GIB:.3g} GiB free.",
            flag="--context",
            remedy="Give fewer tokens, or smaller models.",
        )

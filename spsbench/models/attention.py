"""Attention on a CPU, where the queries of all heads that read the same keys are rows of one product.

torch's kernel multiplies the queries of each head by its keys on its own, and one row in 16 bits, which is
what a step of ArS has, in several times the time of two: a block of drafts would look cheaper than the tokens
it replaces. transformers repeats the keys of a group for each of its heads where a block has a mask.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_MOST_QUERIES = 64
"""Of a head in a block of drafts; a prompt is left to transformers."""


def group_queries(model: nn.Module) -> None:
    """Have the attention of a model over ``sdpa`` go by groups of heads, where its tensors are on a CPU."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("sdpa", attention)
    part: Any
    for part in model.modules():
        if hasattr(part, "is_causal"):
            part.groups_queries = True


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """[B, n, heads, width] of queries [B, heads, n, width] over keys and values [B, groups, slots, width]."""
    is_plain = not dropout and all(others.get(name) is None for name in ("position_bias", "cache", "softcap"))
    is_grouped = hasattr(module, "groups_queries") and is_plain and _gains(query, key, value, attention_mask)
    if is_grouped:
        return _grouped(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    states: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
    )
    return states


def _gains(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    heads, queries, width = query.shape[1:]
    # Without a mask a block would be masked by the kernel, which knows nothing of groups.
    is_block = queries == 1 or (mask is not None and queries <= _MOST_QUERIES)
    is_slow = heads > key.shape[1] or (queries == 1 and query.element_size() == 2)
    is_alike = width == value.shape[-1] and len(query) == len(key)
    return is_block and is_slow and is_alike and query.device.type == "cpu"


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    batch, heads, queries, width = query.shape
    groups, slots = key.shape[1:3]
    count = heads // groups * queries
    rows = query.reshape(batch, groups, count, width)
    if mask is not None:
        mask = mask.expand(batch, heads, queries, slots).reshape(batch, groups, count, slots)
    if count == 1:
        rows = rows.expand(-1, -1, 2, -1)
    states = scaled_dot_product_attention(rows, key, value, mask, scale=scaling)
    return states[:, :, :count].reshape(batch, heads, queries, width)

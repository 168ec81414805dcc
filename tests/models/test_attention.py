"""Attention by groups of heads: what transformers computes, and only in models that were given it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.architectures import whole_model
from benchmarks.tiny_types import tiny_config
from spsbench.models import attention
from spsbench.models.attention import group_queries
from spsbench.models.torch_lm import TorchLM


class Layer(torch.nn.Module):
    is_causal = True

    def __init__(self, heads_of_a_group: int) -> None:
        super().__init__()
        self.num_key_value_groups = heads_of_a_group


def states(
    heads: int, groups: int, queries: int, dtype: torch.dtype, batch: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, by token in memory, as a layer's product leaves them."""
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int, of_heads: int) -> Tensor:
        return torch.randn(batch, rows, of_heads, 16, generator=generator).to(dtype).transpose(1, 2)

    return drawn(queries, heads), drawn(40, groups), drawn(40, groups)


def masks(heads: int, queries: int, batch: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    behind = torch.ones(queries, 40, dtype=torch.bool).tril(40 - queries)
    behind = behind & (torch.arange(40) >= torch.arange(batch).view(-1, 1, 1, 1))
    of_heads = torch.randn(batch, heads, queries, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    return {
        "none": None if queries == 1 else behind,
        "flags": behind,
        "numbers": torch.zeros(behind.shape, dtype=dtype).masked_fill(~behind, torch.finfo(dtype).min),
        "of heads": of_heads,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 1), (4, 4)])
@pytest.mark.parametrize("queries", [1, 2, 7])
@pytest.mark.parametrize("batch", [1, 3])
def test_it_is_what_transformers_computes(
    heads: int, groups: int, queries: int, batch: int, dtype: torch.dtype
) -> None:
    layer = Layer(heads // groups)
    group_queries(layer)
    given = states(heads, groups, queries, dtype, batch)
    for name, mask in masks(heads, queries, batch, dtype).items():
        due = sdpa_attention_forward(layer, *given, mask, scaling=0.3)[0]
        found = attention.attention(layer, *given, mask, scaling=0.3)[0]
        assert found.is_contiguous(), name
        assert found.dtype == dtype, name
        # Of probabilities that are rounded to 16 bits one may end on the other side.
        apart = 1e-5 if dtype == torch.float32 else 1e-2
        assert_close(found, due, rtol=apart, atol=apart)


def rows_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, layer: Any, given: tuple[Tensor, Tensor, Tensor], mask: Any
) -> int:
    """Return how many rows one group has when the kernel is called."""
    heard: list[int] = []

    def heard_attention(query: Tensor, *others: Any, **named: Any) -> Tensor:
        heard.append(query.shape[2])
        return functional.scaled_dot_product_attention(query, *others, **named)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", heard_attention)
    attention.attention(layer, *given, mask)
    return sum(heard)


@pytest.mark.parametrize(
    ("heads", "groups", "queries", "dtype", "rows"),
    [
        (6, 2, 1, torch.float32, 3),
        (6, 2, 5, torch.float32, 15),
        (6, 2, 1, torch.bfloat16, 3),
        (4, 4, 1, torch.bfloat16, 2),  # one row and its copy
        (4, 4, 1, torch.float32, 0),
        (4, 4, 5, torch.bfloat16, 0),
    ],
)
def test_heads_of_a_group_are_rows(
    monkeypatch: pytest.MonkeyPatch, heads: int, groups: int, queries: int, dtype: torch.dtype, rows: int
) -> None:
    layer = Layer(heads // groups)
    given, mask = states(heads, groups, queries, dtype), masks(heads, queries, 1, dtype)["none"]
    assert not rows_of_the_kernel(monkeypatch, layer, given, mask)
    group_queries(layer)
    assert rows_of_the_kernel(monkeypatch, layer, given, mask) == rows


def test_a_prompt_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no mask: the kernel hides what comes later, by a token's place among the rows."""
    layer = Layer(3)
    group_queries(layer)
    given = states(6, 2, 40, torch.float32)
    assert not rows_of_the_kernel(monkeypatch, layer, given, None)
    assert_close(attention.attention(layer, *given, None)[0], sdpa_attention_forward(layer, *given, None)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kind", ["llama", "gemma3_text", "qwen3_5_text", "gpt_neox", "deepseek_v3", "mistral"]
)
def test_a_model_keeps_its_logits_and_its_copies_their_attention(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = whole_model(tiny_config(kind)).to(dtype).eval()
    grouped = TorchLM(copy.deepcopy(model))
    ids = torch.arange(3, 12)
    tolerance = 1e-4 if dtype == torch.float32 else 2.0**-5
    with torch.inference_mode():
        due = model(ids[None]).logits[0].float()
        rows = [
            grouped.score(ids[:4], last=4),
            grouped.score(ids[4:5], last=1),
            grouped.score(ids[5:], last=4),
        ]
        assert (torch.cat(rows).float() - due).abs().max() <= tolerance * due.abs().max()
    assert not any(hasattr(part, "groups_queries") for part in model.modules())

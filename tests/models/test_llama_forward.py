"""``LlamaForward`` equals the model's own forward, and is used only for known architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import config_of, make

from spsbench.models.causal_lm import CausalLM
from spsbench.models.llama_forward import LlamaForward
from spsbench.models.selftest import self_test

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 16}),
    ("llama", {"hidden_act": "gelu"}),
    ("qwen2", {}),
    ("mistral", {"sliding_window": None}),
]


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS, ids=str)
def test_it_equals_the_models_own_forward(architecture: str, changes: dict[str, Any]) -> None:
    """The self-test compares cached scores of ``LlamaForward`` with the uncached forward of the model."""
    model = CausalLM(make(config_of(architecture, **changes)))
    assert LlamaForward.applies_to(model.model)
    assert self_test(model).worst < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = CausalLM(make(config_of("llama")).to(dtype))
    assert self_test(model).worst < (0.05 if dtype == torch.bfloat16 else 1e-6)


def test_the_model_works_as_before_and_shares_its_weights() -> None:
    model = make(config_of("llama", attention_bias=True))
    tokens = torch.arange(20).unsqueeze(0)
    names = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    size = sum(parameter.nbytes for parameter in model.parameters())
    with torch.inference_mode():
        before = model(tokens).logits
        wrapped = CausalLM(model)
        assert torch.equal(model(tokens).logits, before)
    assert {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} == names
    stored = {p.weight.untyped_storage().data_ptr(): p.weight.nbytes for p in wrapped.linears or []}
    own = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert set(stored) <= set(own)
    assert sum(own.values()) == size


def test_rotary_tables_grow_beyond_their_first_size() -> None:
    model = CausalLM(make(config_of("llama", max_position_embeddings=2048)))
    tokens = torch.arange(1300) % 200
    with torch.inference_mode():
        pieces = torch.cat([model.score(part, last=len(part)) for part in tokens.split(650)])
        assert torch.allclose(pieces, model.score_uncached(tokens), atol=1e-4)


@pytest.mark.parametrize("architecture", ["gpt2", "qwen3", "mistral", "gemma3"])
def test_other_architectures_use_their_own_forward(architecture: str) -> None:
    assert not LlamaForward.applies_to(make(config_of(architecture)))


def test_rope_that_depends_on_the_length_uses_the_models_own_forward() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not LlamaForward.applies_to(make(config_of("llama", rope_parameters=rope)))

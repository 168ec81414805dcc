from __future__ import annotations

import pytest
from tiny_models import config_of, make
from transformers import LlamaConfig, LlamaForCausalLM

from spsbench.models.traffic import experts_of, forward_bytes, kv_bytes_per_token


def _model(*, tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    )


@pytest.mark.parametrize("tied", [True, False])
def test_an_input_embedding_counts_only_if_it_is_the_output_too(tied: bool) -> None:
    model = _model(tied=tied)
    everything = sum(parameter.numel() for parameter in model.parameters())
    assert forward_bytes(model) == 4 * (everything if tied else everything - 50 * 16)


def test_keys_and_values_by_their_own_heads() -> None:
    model = _model(tied=True)
    assert kv_bytes_per_token(model) == 2 * 2 * 2 * 4 * 4  # k and v, layers, heads, width, bytes
    model.config.num_attention_heads = 0
    assert kv_bytes_per_token(model) is None


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3-moe"])
def test_of_experts_the_union_counts(architecture: str) -> None:
    model = make(config_of(architecture))
    experts = experts_of(model)
    assert experts is not None
    assert (experts.count, experts.per_token) == (4, 2)
    gates = [p for name, p in model.named_parameters() if ".experts." in name]
    assert experts.bytes == sum(p.nbytes for p in gates) > 0
    rest = forward_bytes(model, rows=1000) - experts.bytes
    assert forward_bytes(model) == rest + experts.bytes // 2
    assert forward_bytes(model, rows=2) == rest + experts.bytes * 3 // 4


def test_a_dense_model_reads_the_same_for_every_block() -> None:
    model = _model(tied=True)
    assert experts_of(model) is None
    assert forward_bytes(model, rows=9) == forward_bytes(model)

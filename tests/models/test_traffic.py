from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from spsbench.models.traffic import forward_bytes, kv_bytes_per_token


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

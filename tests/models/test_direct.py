"""The direct forward computes what the model's own forward does, and only where it is known to."""

from __future__ import annotations

import pytest
import torch
from tiny_models import config_of, make

from spsbench.models.causal_lm import CausalLM
from spsbench.models.direct import DirectForward
from spsbench.models.selftest import self_test


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"tie_word_embeddings": True}], ids=str)
def test_it_equals_the_models_own_forward(changes: dict[str, bool]) -> None:
    """The self-test compares cached scores, direct here, with the uncached forward of the model."""
    model = CausalLM(make(config_of("llama", **changes)))
    assert DirectForward.applies_to(model.model)
    assert self_test(model).worst < 1e-5


def test_tables_grow_beyond_their_first_size() -> None:
    model = CausalLM(make(config_of("llama", max_position_embeddings=2048)))
    tokens = torch.arange(1300) % 200
    with torch.inference_mode():
        pieces = torch.cat([model.score(part, last=len(part)) for part in tokens.split(650)])
        assert torch.allclose(pieces, model.score_uncached(tokens), atol=1e-4)


@pytest.mark.parametrize("architecture", ["gpt2", "qwen3", "mistral", "gemma3"])
def test_other_architectures_go_through_their_own(architecture: str) -> None:
    assert not DirectForward.applies_to(make(config_of(architecture)))


def test_rope_that_depends_on_the_length_goes_through_its_own() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not DirectForward.applies_to(make(config_of("llama", rope_parameters=rope)))

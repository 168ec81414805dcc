"""Real model classes with random weights: exact rollback, and greedy SpS = greedy ArS = generate()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from spsbench.base.errors import UsageError
from spsbench.base.records import Request, SamplingParams
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import EagerEngine
from spsbench.models.causal_lm import CausalLM, require_exact_rollback, self_test
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import Letters

VOCAB = 97


def llama(layers: int = 2, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def gpt2(layers: int = 2, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=layers, n_head=4, n_positions=512, initializer_range=0.3
    )
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("make", [llama, gpt2])
def test_rollback_is_exact(make: Any) -> None:
    assert self_test(TorchLM(make())).worst < 1e-5


def test_a_cache_that_does_not_roll_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchLM(llama())
    real = model.rollback
    monkeypatch.setattr(model, "rollback", lambda length: real(0) if length == 0 else None)
    with pytest.raises(UsageError, match="cannot be rolled back"):
        require_exact_rollback(model, "stuck")


def test_the_buffer_grows_without_losing_its_content() -> None:
    model = TorchLM(llama())
    tokens = torch.randint(VOCAB, (400,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        pieces = [model.score(part, last=len(part)) for part in tokens.split(37)]
        assert torch.allclose(torch.cat(pieces), model.score_uncached(tokens), atol=1e-4)


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_sps_is_greedy_ars_is_generate(make: Any, k: int) -> None:
    target, draft = make(), make(layers=1)
    generator = torch.Generator().manual_seed(k)
    prompt = torch.randint(VOCAB, (11,), generator=generator)
    request = Request(tuple(prompt.tolist()), 40, (), SamplingParams(greedy=True), seed=0, fixed_length=True)

    def answer(draft_model: CausalLM | None) -> list[int]:
        engine = EagerEngine(TorchLM(target), draft_model, k, Letters(""), torch.device("cpu"), SystemClock())
        return engine.generate(request).tokens

    target.generation_config.eos_token_id = None  # else generate() would stop there
    with torch.inference_mode():
        reference = target.generate(prompt[None], max_new_tokens=40, do_sample=False)[0, 11:]
    assert answer(None) == reference.tolist()
    assert answer(TorchLM(draft)) == reference.tolist()

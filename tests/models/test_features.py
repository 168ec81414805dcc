"""The states that a target keeps are what its head multiplies, and keeping them changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.tiny_models import ARCHITECTURES, MORE, config_of, make, over_onnx
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM

TOKENS = (torch.arange(30) * 7) % 250
COVERED = ["llama", "qwen2", "qwen3", "olmo2", "phi3", "granite", "gemma"]
SIZES = {"qwen3": {"head_dim": 16}, "gemma": {"head_dim": 16}}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def head_inputs(model: TorchLM, tokens: Tensor) -> Tensor:
    """[n, hidden] what the head is given in an uncached forward of all tokens."""
    seen: list[Tensor] = []
    head = model.model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda part, args: seen.append(args[0][0]))
    model.score_uncached(tokens)
    hook.remove()
    return seen[0]


def in_pieces(model: CausalLM) -> list[Tensor]:
    """Logits of a prompt with one row, a block, a rollback into it, and another block."""
    rows = [model.score(TOKENS[:20], last=1).clone(), model.score(TOKENS[20:25].flip(0), last=5).clone()]
    model.rollback(21 if TOKENS[20] == TOKENS[24] else 20)
    rows += [model.score(TOKENS[20:21], last=1).clone(), model.score(TOKENS[21:], last=9).clone()]
    return rows


def checked(kept: CausalLM, plain: CausalLM, reference: TorchLM) -> None:
    for row, expected in zip(in_pieces(kept), in_pieces(plain), strict=True):
        assert torch.equal(row, expected)
    expected = head_inputs(reference, TOKENS)
    assert torch.allclose(kept.features(0, 30), expected, atol=2e-4)
    assert torch.allclose(kept.features(22, 25), expected[22:25], atol=2e-4)
    assert kept.keeps_features
    assert not plain.keeps_features


@pytest.mark.parametrize("architecture", COVERED)
def test_over_onnx_they_are_the_heads_inputs_and_the_logits_stay_bit_for_bit(architecture: str) -> None:
    model = make(config_of(architecture, hidden_size=64, **SIZES.get(architecture, {})))
    plain = over_onnx(model)
    checked(plain.with_features("--drafter"), plain, TorchLM(model))


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES, *MORE} - {"llama4"}))
def test_over_torch_they_are_the_heads_inputs_and_the_logits_stay_bit_for_bit(architecture: str) -> None:
    plain = TorchLM(make(config_of(architecture)))
    checked(plain.with_features("--drafter"), plain, plain)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_who_keeps_them_has_a_cache_of_its_own(backend: str) -> None:
    model = make(config_of("llama", hidden_size=64))
    plain = over_onnx(model) if backend == "onnx" else TorchLM(model)
    kept = plain.with_features("--drafter")
    kept.score(TOKENS, last=1)
    assert (plain.length, kept.length) == (0, 30)
    before = kept.features(0, 30).clone()
    plain.score(TOKENS.flip(0), last=1)
    assert torch.equal(kept.features(0, 30), before)


def test_they_outgrow_their_room() -> None:
    kept = over_onnx(make(config_of("llama", hidden_size=64))).with_features("--drafter")
    tokens = TOKENS.repeat(20)
    for block in torch.split(tokens, 7):
        kept.score(block, last=1)
    before = kept.features(0, 600).clone()
    kept.rollback(0)
    kept.score(tokens, last=1)
    assert torch.allclose(kept.features(0, 600), before, atol=1e-4)


def test_a_body_that_hands_over_something_else_is_refused() -> None:
    model = make(config_of("llama"))
    TorchLM(model).with_features("--drafter")
    model.lm_head.register_forward_pre_hook(lambda part, args: (args[0] / 2,))
    for other in (model, make(config_of("llama4"))):
        with pytest.raises(UsageError, match=r"--drafter: the input of the head of Llama4?ForCausalLM"):
            TorchLM(other).with_features("--drafter")

"""The states that a target keeps are what its head multiplies, and keeping them changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.tiny_models import ARCHITECTURES, MORE, config_of, make, over_onnx
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.models.causal_lm import NORMED, CausalLM
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


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES, *MORE} - {"modernbert"}))
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


def layer_states(model: TorchLM, tokens: Tensor) -> dict[int, Tensor]:
    """[n, hidden] the residual stream after each number of layers, by an uncached forward of all tokens."""
    seen: list[Tensor] = []
    norm = model.model.get_decoder().norm
    hook = norm.register_forward_pre_hook(lambda part, args: seen.append(args[0][0]))
    told = model.model(input_ids=tokens.unsqueeze(0), use_cache=False, output_hidden_states=True)
    hook.remove()
    return dict(enumerate(states[0] for states in told.hidden_states[:-1])) | {model.layers: seen[0]}


STATES = (2, NORMED, 0, 1, 4)


@pytest.mark.parametrize("architecture", COVERED)
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_states_between_layers_are_the_residual_stream(architecture: str, backend: str) -> None:
    """Prompt, block, rollback and another block, beside the logits of a model that keeps none."""
    model = make(config_of(architecture, **{"hidden_size": 64, **SIZES.get(architecture, {})}))
    reference = TorchLM(model)
    assert reference.layers == 4
    plain = over_onnx(model) if backend == "onnx" else reference
    kept = plain.with_features("--drafter", STATES)
    for row, expected in zip(in_pieces(kept), in_pieces(plain), strict=True):
        assert torch.equal(row, expected)
    wanted = layer_states(reference, TOKENS) | {NORMED: head_inputs(reference, TOKENS)}
    for state in STATES:
        rounding = max(2e-4, 5e-5 * float(wanted[state].abs().max()))  # granite's states grow to 80
        assert torch.allclose(kept.features(0, 30, (state,)), wanted[state], atol=rounding)
    both = kept.features(3, 30, (1, 2))
    assert torch.equal(both, torch.cat([kept.features(3, 30, (1,)), kept.features(3, 30, (2,))], 1))
    assert not torch.allclose(wanted[1], wanted[2], atol=2e-4)


def test_a_state_that_the_target_has_not_is_refused() -> None:
    model = make(config_of("llama", hidden_size=64))
    for lm in (TorchLM(model), over_onnx(model)):
        lm.with_features("--drafter", (4,))
        with pytest.raises(UsageError, match="no state after 5 layers in a target of 4"):
            lm.with_features("--drafter", (1, 5))


def test_layers_whose_states_are_not_what_transformers_says_are_refused() -> None:
    model = make(config_of("llama"))
    model.model.layers[0].register_forward_hook(lambda part, args, output: output * 2)
    TorchLM(model).with_features("--drafter", (1,))
    usual = model.model.forward

    def scaled(*args: Any, **named: Any) -> Any:
        output = usual(*args, **named)
        if output.hidden_states is not None:
            output.hidden_states = tuple(2 * states for states in output.hidden_states)
        return output

    model.model.forward = scaled
    with pytest.raises(UsageError, match="states between the layers of LlamaForCausalLM are not accessible"):
        TorchLM(model).with_features("--drafter", (1,))


def test_several_streams_between_layers_are_refused() -> None:
    target = TorchLM(make(config_of("deepseek-v4")))
    with pytest.raises(UsageError, match="states between the layers of DeepseekV4ForCausalLM"):
        target.with_features("--drafter", (1,))


@pytest.mark.parametrize("architecture", ["qwen3.5", "recurrent-gemma"])
def test_states_between_layers_with_a_running_state(architecture: str) -> None:
    """Planes are read in one forward, steps in one for each token."""
    plain = TorchLM(make(config_of(architecture)))
    kept = plain.with_features("--drafter", (1, NORMED))
    for row, expected in zip(in_pieces(kept), in_pieces(plain), strict=True):
        assert torch.equal(row, expected)
    told = plain.model(input_ids=TOKENS.unsqueeze(0), use_cache=False, output_hidden_states=True)
    assert torch.allclose(kept.features(0, 30, (1,)), told.hidden_states[1][0], atol=2e-4)


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
    for other in (model, make(config_of("modernbert"))):
        with pytest.raises(UsageError, match=r"--drafter: the input of the head of .*ForCausalLM"):
            TorchLM(other).with_features("--drafter")

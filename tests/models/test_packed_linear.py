"""Packed linear layers give the same logits and are used where chosen; no timing decides."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tiny_models import config_of, make

from spsbench.errors import UsageError
from spsbench.models import packed_linear
from spsbench.models.causal_lm import CausalLM
from spsbench.models.memory import forward_bytes
from spsbench.models.packed_linear import use_kernels

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
both_kinds = pytest.mark.parametrize(
    "architecture", ["llama", "gpt_neox"]
)  # LlamaForward, and the model's own forward


def scored(model: CausalLM, rows: int) -> torch.Tensor:
    tokens = torch.arange(rows) % 200
    with torch.inference_mode():
        model.rollback(0)
        logits = model.score(tokens, last=rows)
    model.rollback(0)
    return logits


@needs_onednn
@both_kinds
def test_packed_layers_give_the_same_logits(architecture: str) -> None:
    model = CausalLM(make(config_of(architecture)))
    assert (model.linears is None) == (architecture == "gpt_neox")
    plain = {rows: scored(model, rows) for rows in (1, 5)}
    assert use_kernels(model, "packed") == "packed"
    for rows, expected in plain.items():
        assert torch.allclose(scored(model, rows), expected, atol=1e-5)


@needs_onednn
@both_kinds
def test_the_packed_form_is_used_except_in_stock_mode(architecture: str) -> None:
    """Only the plain form sees a weight that is changed after packing."""
    model = CausalLM(make(config_of(architecture)))
    use_kernels(model, "packed")
    before = scored(model, 5)
    with torch.no_grad():
        model.model.get_output_embeddings().weight.mul_(2)
    assert torch.equal(scored(model, 5), before)
    with model.mode.stock():
        assert not torch.equal(scored(model, 5), before)
    assert torch.equal(scored(model, 5), before)


@both_kinds
def test_plain_changes_nothing(architecture: str) -> None:
    model = CausalLM(make(config_of(architecture)))
    before = scored(model, 5)
    assert use_kernels(model, "plain") == "plain"
    assert torch.equal(scored(model, 5), before)
    assert all(linear._packed is None for linear in model.linears or [])


def test_without_operators_everything_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert use_kernels(CausalLM(make(config_of("llama"))), "packed") == "plain"


def test_without_memory_packed_is_refused_without_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load of the machine must not change the kernels of a run."""
    monkeypatch.setattr(packed_linear, "available_bytes", lambda device: 1000)
    monkeypatch.setattr(packed_linear, "can_pack", lambda dtype: True)
    with pytest.raises(UsageError, match="--kernels: packed weights need"):
        use_kernels(CausalLM(make(config_of("llama"))), "packed")


@needs_onednn
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # the latter with biases
@pytest.mark.parametrize("tied", [True, False])
def test_a_large_packed_model_is_stored_once(
    architecture: str, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(architecture)
    config.tie_word_embeddings = tied
    model = CausalLM(make(config))
    tokens = torch.arange(7)
    before = {rows: scored(model, rows) for rows in (1, 5, 7)}
    uncached = model.model(input_ids=tokens.unsqueeze(0)).logits[0]
    bytes_before = forward_bytes(model.model)
    monkeypatch.setattr(packed_linear, "_SMALL_PARAMETERS", 0)
    use_kernels(model, "packed", keep_plain=False)
    hollow = [name for name, weight in model.model.named_parameters() if weight.is_meta]
    assert hollow
    assert not any("embed" in name or "norm" in name for name in hollow)
    head = model.model.get_output_embeddings().weight
    assert head.is_meta == (not tied)
    assert forward_bytes(model.model) == bytes_before
    for rows, expected in before.items():
        assert torch.allclose(scored(model, rows), expected, atol=1e-5)
    with torch.inference_mode():
        assert torch.allclose(model.score_uncached(tokens), uncached, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("reason", ["small", "requested"])
def test_plain_weights_are_kept(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM(make(config_of("llama")))
    if reason != "small":
        monkeypatch.setattr(packed_linear, "_SMALL_PARAMETERS", 0)
    use_kernels(model, "packed", keep_plain=reason == "requested")
    assert not any(weight.is_meta for weight in model.model.parameters())


@needs_onednn
def test_nothing_else_holds_the_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    config.tie_word_embeddings = False
    model = CausalLM(make(config))
    assert model.linears is not None
    plain = [weakref.ref(linear.weight) for linear in model.linears]
    monkeypatch.setattr(packed_linear, "_SMALL_PARAMETERS", 0)
    use_kernels(model, "packed", keep_plain=False)
    gc.collect()
    assert not any(weight() is not None for weight in plain)

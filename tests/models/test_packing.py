"""Packed products compute the same, are used for the chosen rows alone, and go away if none gains."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tiny_models import config_of, make
from torch import nn

from spsbench.models import packing
from spsbench.models.causal_lm import CausalLM
from spsbench.models.product import ProductLinear
from spsbench.models.traffic import forward_bytes

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def scored(model: CausalLM, rows: int) -> torch.Tensor:
    tokens = torch.arange(rows) % 200
    with torch.inference_mode():
        model.rollback(0)
        logits = model.score(tokens, last=rows)
    model.rollback(0)
    return logits


@needs_onednn
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])  # our own forward, and the model's
def test_packed_rows_give_the_same_logits(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM(make(config_of(architecture)))
    assert (model.products is None) == (architecture == "gpt_neox")
    plain = {rows: scored(model, rows) for rows in (1, 5)}
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: rows == 5)
    assert packing.choose_modes(model, [5, 1]) == {"1": "plain", "5": "packed"}
    for rows, expected in plain.items():
        assert torch.allclose(scored(model, rows), expected, atol=1e-5)
        assert model.modes.packed == (rows == 5)


@needs_onednn
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_the_packed_form_is_what_multiplies(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed weight is seen by the plain form alone, which it was packed from before."""
    model = CausalLM(make(config_of(architecture)))
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: rows == 5)
    packing.choose_modes(model, [1, 5])
    before = {rows: scored(model, rows) for rows in (1, 5)}
    with torch.no_grad():
        model.model.get_output_embeddings().weight.mul_(2)
    assert torch.equal(scored(model, 5), before[5])
    assert not torch.equal(scored(model, 1), before[1])


@needs_onednn
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_everything_is_plain_again_if_nothing_gains(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CausalLM(make(config_of(architecture)))
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: False)
    assert packing.choose_modes(model, [1, 5]) == {"1": "plain", "5": "plain"}
    assert type(model.model.get_output_embeddings()) is nn.Linear
    assert not any(isinstance(module, ProductLinear) for module in model.model.modules())
    assert all(product._packed is None for product in model.products or [])


def test_the_trial_itself_chooses_some_mode_for_every_row() -> None:
    model = CausalLM(make(config_of("llama")))
    modes = packing.choose_modes(model, [1, 5])
    assert set(modes) == {"1", "5"}
    assert set(modes.values()) <= {"plain", "packed"}
    assert model.length == 0


@pytest.mark.parametrize("missing", ["operators", "room"])
def test_without_operators_or_room_everything_stays_plain(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "operators":
        monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    else:
        monkeypatch.setattr(packing, "available_bytes", lambda device: 1000)
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: True)
    assert packing.choose_modes(CausalLM(make(config_of("llama"))), [1, 3]) == {"1": "plain", "3": "plain"}


@needs_onednn
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # the latter with biases
@pytest.mark.parametrize("tied", [True, False])
def test_a_large_model_that_is_packed_throughout_is_there_once(
    architecture: str, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(architecture)
    config.tie_word_embeddings = tied
    model = CausalLM(make(config))
    tokens = torch.arange(7)
    before = {rows: scored(model, rows) for rows in (1, 5, 7)}
    uncached = model.model(input_ids=tokens.unsqueeze(0)).logits[0]
    bytes_before = forward_bytes(model.model)
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: True)
    monkeypatch.setattr(packing, "_SMALL_PARAMETERS", 0)
    packing.choose_modes(model, [1, 5], keep_plain=False)
    hollow = [name for name, weight in model.model.named_parameters() if weight.is_meta]
    assert hollow
    assert not any("embed" in name or "norm" in name for name in hollow)
    head = model.model.get_output_embeddings().weight
    assert head.is_meta == (not tied)
    assert forward_bytes(model.model) == bytes_before
    for rows, expected in before.items():  # 7 was never tried: a prefill, say
        assert torch.allclose(scored(model, rows), expected, atol=1e-5)
    with torch.inference_mode():
        assert torch.allclose(model.score_uncached(tokens), uncached, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("reason", ["small", "wanted", "mixed"])
def test_the_plain_weights_stay(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM(make(config_of("llama")))
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: rows == 5 or reason != "mixed")
    if reason != "small":
        monkeypatch.setattr(packing, "_SMALL_PARAMETERS", 0)
    packing.choose_modes(model, [1, 5], keep_plain=reason == "wanted")
    assert not any(weight.is_meta for weight in model.model.parameters())


@needs_onednn
def test_nothing_else_holds_the_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    config.tie_word_embeddings = False
    model = CausalLM(make(config))
    assert model.products is not None
    plain = [weakref.ref(product.weight) for product in model.products]
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: True)
    monkeypatch.setattr(packing, "_SMALL_PARAMETERS", 0)
    packing.choose_modes(model, [1, 5], keep_plain=False)
    gc.collect()
    assert not any(weight() is not None for weight in plain)

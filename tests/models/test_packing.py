"""Packed linears compute the same, are used for the chosen rows alone, and go away if none gains."""

from __future__ import annotations

import pytest
import torch
from tiny_models import config_of, make
from torch import nn

from spsbench.models import packing
from spsbench.models.causal_lm import CausalLM


def scored(model: CausalLM, rows: int) -> torch.Tensor:
    tokens = torch.arange(rows) % 200
    with torch.inference_mode():
        model.rollback(0)
        logits = model.score(tokens, last=rows)
    model.rollback(0)
    return logits


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_packed_rows_give_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM(make(config_of("llama")))
    plain = {rows: scored(model, rows) for rows in (1, 5)}
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: rows == 5)
    assert packing.choose_modes(model, [5, 1]) == {"1": "plain", "5": "packed"}
    assert model.modes is not None
    for rows, expected in plain.items():
        assert torch.allclose(scored(model, rows), expected, atol=1e-5)
        assert model.modes.packed == (rows == 5)


def test_the_plain_layers_come_back_if_nothing_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CausalLM(make(config_of("llama")))
    monkeypatch.setattr(packing, "_packed_wins", lambda model, modes, rows: False)
    assert packing.choose_modes(model, [1, 5]) == {"1": "plain", "5": "plain"}
    assert model.modes is None
    assert type(model.model.lm_head) is nn.Linear


def test_without_the_operators_everything_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert packing.choose_modes(CausalLM(make(config_of("llama"))), [1, 3]) == {"1": "plain", "3": "plain"}

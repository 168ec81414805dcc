"""Models that score several sequences at once, and the comparison that admits them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import config_of, make, over_onnx

from spsbench.base.errors import UsageError
from spsbench.decode.batch import BatchModel
from spsbench.models import batched as module
from spsbench.models import onnx_lm
from spsbench.models.batched import OnnxBatchLM, StaticLM, batch_model, difference
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM

SLOTS = 48
WIDE = {"hidden_size": 64}


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "phi3", "olmo2"])
def test_over_onnx_a_row_is_what_it_is_alone(architecture: str, blocks: bool) -> None:
    """Windows, norms of queries and fused matrices included; products of other row counts may round apart."""
    sizes = WIDE | ({"head_dim": 16} if architecture in ("qwen3", "mistral") else {})
    model = over_onnx(make(config_of(architecture, **sizes)))
    found = batch_model(model, 5, SLOTS, blocks=blocks)
    assert max(difference(model, found, n) for n in ((1, 3) if blocks else (1,))) < 1e-5


@pytest.mark.parametrize("blocks", [True, False])
def test_over_onnx_a_large_model_whose_session_knows_both_ways_of_attention(
    blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_lm, "_LARGE", 0)
    model = over_onnx(make(config_of("llama", **WIDE)))
    assert model.large
    found = batch_model(model, 3, SLOTS, blocks=blocks)
    assert max(difference(model, found, n) for n in ((1, 3) if blocks else (1,))) < 1e-5


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_weights_too(bits: int) -> None:
    model = over_onnx(make(config_of("llama", **WIDE))).rounded(bits)
    assert difference(model, batch_model(model, 3, SLOTS, blocks=True), 3) < 1e-2


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gpt_neox", "phi"])
def test_over_torch(architecture: str) -> None:
    model = TorchLM(make(config_of(architecture)))
    assert difference(model, batch_model(model, 3, SLOTS, blocks=True), 3) < 1e-4


def test_a_row_that_held_nan_is_clean_for_the_next_sequence() -> None:
    model = TorchLM(make(config_of("llama")))
    batch = batch_model(model, 2, SLOTS, blocks=True)
    assert isinstance(batch, StaticLM)
    with torch.inference_mode():
        for layer in batch.layers:
            layer.values[1] = torch.nan
    assert difference(model, batch, 3) < 1e-4


def test_windows_over_torch_are_refused() -> None:
    with pytest.raises(UsageError, match="sliding") as refused:
        batch_model(TorchLM(make(config_of("mistral"))), 3, SLOTS, blocks=True)
    assert refused.value.flag == "--batch"


class _Mixed(OnnxBatchLM):
    """Rows swapped, as a wrong stride would."""

    def score(self, tokens: torch.Tensor, starts: Any, last: int) -> torch.Tensor:
        return super().score(tokens, starts, last).roll(1, 0)


class _Late(OnnxBatchLM):
    """Every row but the first one token late, as a length shared by all rows would be."""

    def score(self, tokens: torch.Tensor, starts: Any, last: int) -> torch.Tensor:
        return super().score(tokens, [max(starts)] * len(starts), last)


class _Steps(OnnxBatchLM):
    """Right for blocks, and for one token a row that of the row beside it."""

    def score(self, tokens: torch.Tensor, starts: Any, last: int) -> torch.Tensor:
        found = super().score(tokens, starts, last)
        return found.roll(1, 0) if tokens.shape[1] == 1 else found


@pytest.mark.parametrize("wrong", [_Mixed, _Late, _Steps])
def test_a_batch_that_answers_otherwise_is_found_out(
    wrong: type[OnnxBatchLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: CausalLM = over_onnx(make(config_of("llama", **WIDE)))
    monkeypatch.setattr(module, "OnnxBatchLM", wrong)
    with pytest.raises(UsageError, match="logits differ"):
        batch_model(model, 3, SLOTS, blocks=True)


def test_what_a_row_held_before_is_forgotten() -> None:
    model = over_onnx(make(config_of("llama", **WIDE)))
    batch: BatchModel = batch_model(model, 2, SLOTS, blocks=True)
    tokens = torch.tensor([[5, 6], [7, 8]])
    with torch.inference_mode():
        batch.begin(0, [1, 2, 3])
        batch.begin(1, [4, 5, 6])
        first = batch.score(tokens, [2, 2], last=2).clone()
        batch.begin(1, [9] * 20)
        batch.score(tokens, [2, 19], last=2)
        batch.begin(1, [4, 5, 6])
        assert torch.equal(batch.score(tokens, [2, 2], last=2), first)

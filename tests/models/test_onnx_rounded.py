"""Rounded weights are what the definition of rounding says, and their forward is close to that weight's."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch
from support.tiny_models import config_of, make, over_onnx
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.drafters.own_target import rounded_target
from spsbench.models.causal_lm import self_test
from spsbench.models.onnx_graph import BLOCK, block_sums, rounded
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_lm import TorchLM

IDS = torch.randint(250, (40,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def rounded_by_hand(weight: Tensor, bits: int) -> Tensor:
    """One row and one block after the other, in plain sight."""
    found = torch.empty_like(weight)
    for r, row in enumerate(weight):
        for first in range(0, weight.shape[1], BLOCK):
            part = row[first : first + BLOCK]
            low = part.min() if bits == 4 else torch.tensor(0.0)
            step = (part.max() - low) / 15 if bits == 4 else part.abs().max() / 127
            rounded = torch.round((part - low) / step) * step if step > 0 else torch.zeros_like(part)
            found[r, first : first + BLOCK] = low + rounded
    return found


def decoded(weight: Tensor, bits: int) -> Tensor:
    """What the codes mean, from the definition of each part."""
    found = rounded(weight.numpy(), bits)
    codes = found.codes
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], BLOCK)
    whole = (codes.astype(np.float32) - (1 << (bits - 1))) * found.scales[..., None]
    if found.offsets is not None:
        whole += found.offsets[..., None]
    return torch.from_numpy(whole.reshape(len(weight), -1)[:, : weight.shape[1]])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(48, 64), (33, 128), (20, 40)], ids=str)
def test_a_weight_is_rounded_as_defined(bits: int, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    weight[3] = 0.0
    weight[4] = 2.5
    assert torch.allclose(decoded(weight, bits), rounded_by_hand(weight, bits), atol=1e-5)
    assert not torch.allclose(decoded(weight, bits), weight, atol=1e-3)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_what_ggml_rounded_before_is_kept_as_it_is(kind: str) -> None:
    """Its draft then differs from its target by activations alone."""
    weight = np.random.default_rng(0).normal(0.1, 1, (24, 96)).astype(np.float32)
    type_ = gguf.GGMLQuantizationType[kind]
    before = torch.from_numpy(gguf.dequantize(gguf.quantize(weight, type_), type_))
    size = float(before.abs().max())
    bits, other = (4, 8) if kind == "Q4_1" else (8, 4)
    assert float((decoded(before, bits) - before).abs().max()) < 1e-6 * size
    assert float((decoded(before, other) - before).abs().max()) > 1e-4 * size


def test_sums_over_blocks_take_the_rest_of_a_row_as_its_last_block() -> None:
    x = np.arange(80, dtype=np.float32)
    assert (x @ block_sums(80)).tolist() == [x[:32].sum(), x[32:64].sum(), x[64:].sum()]


def pair(bits: int) -> tuple[OnnxLM, TorchLM]:
    """A rounded model, and torch's with the weights that rounding gives."""
    model = make(config_of("llama", hidden_size=64, intermediate_size=128, num_attention_heads=4))
    by_hand = copy.deepcopy(model)
    for module in by_hand.modules():
        if isinstance(module, torch.nn.Linear):
            is_head = module is by_hand.get_output_embeddings()
            module.weight.copy_(rounded_by_hand(module.weight, 8 if is_head else bits))
    return rounded_target(over_onnx(model), bits), TorchLM(by_hand)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_forward_is_that_of_the_rounded_weights(bits: int) -> None:
    """Up to the activations, which are rounded to 8 bits inside a product."""
    model, by_hand = pair(bits)
    assert model.weights == f"int{bits}"
    assert model.forward_bytes() < 4 * by_hand.parameters / (2 if bits == 8 else 4)
    expected = by_hand.score_uncached(IDS)
    found = model.score(IDS, len(IDS))
    assert float((found - expected).abs().mean() / expected.abs().mean()) < 0.1
    assert self_test(model).worst < 6e-2


def test_copies_share_weights_and_no_cache() -> None:
    model, _ = pair(8)
    with pytest.raises(UsageError, match="int8 already"):
        rounded_target(model, 8)
    whole = over_onnx(model.reference().model)
    one, other = (rounded_target(whole, 8) for _ in range(2))
    one.score(IDS, 1)
    assert other.length == whole.length == 0
    assert one.session is other.session


def test_what_cannot_be_rounded_is_named() -> None:
    with pytest.raises(UsageError, match="the target runs over torch"):
        rounded_target(TorchLM(make(config_of("llama", hidden_size=64))), 8)

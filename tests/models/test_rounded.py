"""Rounded weights are what the definition of rounding says, by whichever kernel they are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import config_of, make, make_pair
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from spsbench.drafters.quantised import rounded_target
from spsbench.errors import UsageError
from spsbench.models import quantised as room
from spsbench.models.causal_lm import CausalLM
from spsbench.models.packed_linear import use_kernels
from spsbench.models.quantised import RoundedProduct, quantised
from spsbench.models.selftest import self_test

TOKENS = (torch.arange(12) * 7) % 250
FORMS = [(8, 32), (4, 32), (4, 64)]
WIDE = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def rounded_by_hand(weight: Tensor, bits: int, group: int) -> Tensor:
    """One row and one group after the other, in plain sight."""
    found = torch.empty_like(weight)
    span = weight.shape[1] if bits == 8 else group
    for r, row in enumerate(weight):
        for first in range(0, weight.shape[1], span):
            part = row[first : first + span]
            step = part.abs().max() / (127 if bits == 8 else 7)
            step = step.bfloat16().float() if bits == 4 else step
            if step == 0:
                found[r, first : first + span] = 0.0
                continue
            codes = torch.round(part / step).clamp(-7.0 if bits == 4 else -127.0, 7.0 if bits == 4 else 127.0)
            found[r, first : first + span] = codes * step
    return found


@pytest.mark.parametrize(("bits", "group"), FORMS)
@pytest.mark.parametrize("shape", [(48, 64), (33, 128), (20, 40)], ids=str)
def test_a_weight_is_rounded_as_defined(bits: int, group: int, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    product = RoundedProduct(weight, None, bits, group)
    assert torch.allclose(product.weight, rounded_by_hand(weight, bits, group), atol=1e-6)
    assert not torch.allclose(product.weight, weight, atol=1e-3)


@pytest.mark.parametrize(("bits", "group"), FORMS)
@pytest.mark.parametrize("rows", [1, 2, 5, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(48, 64), (33, 128), (20, 40)], ids=str)
def test_products_are_with_the_rounded_weight(
    bits: int, group: int, rows: int, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator)
    x = torch.randn(1, rows, shape[1], generator=generator).to(dtype)
    product = RoundedProduct(weight.to(dtype), bias.to(dtype), bits, group)
    expected = x.double() @ rounded_by_hand(weight.to(dtype).float(), bits, group).double().T + bias
    found = product(x)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    tolerance = 1e-6 if dtype == torch.float64 else 1e-2  # of bfloat16 activations
    tolerance = 1e-5 if dtype == torch.float32 and (rows > 16 or not product.uses_kernel) else tolerance
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_does_not_depend_on_the_rows_beside_it(bits: int) -> None:
    """A draft scores one token or two at once: its law must not know which."""
    generator = torch.Generator().manual_seed(0)
    product = RoundedProduct(torch.randn(64, 96, generator=generator), None, bits, 32)
    x = torch.randn(5, 96, generator=generator)
    assert product.uses_kernel
    assert torch.equal(product(x), torch.cat([product(row) for row in x.split(1)]))


def test_widths_that_the_kernels_read_beyond_take_none() -> None:
    assert not RoundedProduct(torch.ones(64, 40), None, 8, 32).uses_kernel
    assert not RoundedProduct(torch.ones(33, 64), None, 4, 32).uses_kernel
    assert not RoundedProduct(torch.ones(64, 64), None, 4, 16).uses_kernel


def test_a_row_of_zeros_stays_one() -> None:
    for bits in (8, 4):
        product = RoundedProduct(torch.zeros(16, 32), None, bits, 32)
        assert torch.equal(product(torch.ones(1, 32)), torch.zeros(1, 16))


def round_in_place(model: Any, bits: int) -> None:
    """An ordinary model whose layers hold rounded weights in float32; its embedding stays."""
    for module in [*model.modules()]:
        if isinstance(module, Conv1D):
            module.weight = nn.Parameter(rounded_by_hand(module.weight.T, bits, 32).T.contiguous())
        elif isinstance(module, nn.Linear):
            module.weight = nn.Parameter(rounded_by_hand(module.weight, bits, 32))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3", "qwen2"])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_model_is_one_whose_weights_were_rounded_by_hand(architecture: str, bits: int) -> None:
    changes = {} if architecture == "gpt2" else WIDE
    target = CausalLM(make(config_of(architecture, **changes)))
    before = target.score_uncached(TOKENS)
    found = quantised(target, bits, 32, "--drafter").model
    round_in_place(by_hand := make(config_of(architecture, **changes)), bits)
    expected = CausalLM(by_hand).score_uncached(TOKENS)
    scale = float(expected.abs().max())
    error = float((found.score(TOKENS, last=12) - expected).abs().max()) / scale
    assert error < 0.05  # bfloat16 activations
    assert error < float((before - expected).abs().max()) / scale
    assert torch.equal(target.score_uncached(TOKENS), before)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("bits", [8, 4])
def test_its_cache_forgets_exactly(architecture: str, bits: int) -> None:
    """The uncached forward multiplies with decoded float32 weights where the direct forward is ours."""
    model = quantised(CausalLM(make_pair(architecture)[0]), bits, 32, "--drafter").model
    assert self_test(model).worst < 0.05


def test_a_forward_reads_a_quarter_or_an_eighth() -> None:
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256}
    target = CausalLM(make(config_of("llama", **sizes)))
    matrices = sum(product.weight.numel() for product in target.linears or [])
    for bits, steps in ((8, 4), (4, 4 * 128 // 32)):
        read = quantised(target, bits, 32, "--drafter").forward_bytes
        assert matrices * bits // 8 < read < matrices * bits // 8 + matrices // 128 * steps * 2 + 10_000


def test_weights_are_rounded_once_for_all_arms_of_a_target() -> None:
    target, other = (CausalLM(make(config_of("llama"))) for _ in range(2))
    assert rounded_target(target, 8, 32) is rounded_target(target, 8, 32)
    assert rounded_target(target, 8, 32) is not rounded_target(target, 4, 32)
    assert rounded_target(target, 8, 32) is not rounded_target(other, 8, 32)


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_packed_targets_are_rounded_all_the_same(architecture: str) -> None:
    target = CausalLM(make(config_of(architecture)))
    expected = quantised(target, 8, 32, "--drafter").model.score(TOKENS, last=12)
    use_kernels(target, "packed")
    assert torch.equal(quantised(target, 8, 32, "--drafter").model.score(TOKENS, last=12), expected)


@pytest.mark.parametrize(
    ("bits", "group", "said"), [(3, 32, "bits=3 is not valid. Give bits=8 or bits=4"), (4, 0, "group=0")]
)
def test_other_forms_are_refused(bits: int, group: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"--drafter: quantised:{said}"):
        rounded_target(CausalLM(make(config_of("llama"))), bits, group)


def test_without_room_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda device: 1000)
    with pytest.raises(UsageError, match=r"at 8 bits needs \d+ bytes .* cpu has 1000 "):
        quantised(CausalLM(make(config_of("llama"))), 8, 32, "--drafter")


def test_what_is_quantised_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CausalLM(make(config_of("llama")))
    monkeypatch.setattr(target, "model", SimpleNamespace(is_quantized=True))
    with pytest.raises(UsageError, match="are quantised already"):
        quantised(target, 8, 32, "--drafter")


@pytest.mark.parametrize("architecture", ["mixtral", "falcon"])
def test_weights_that_are_mostly_no_plain_matrices_are_refused(architecture: str) -> None:
    with pytest.raises(UsageError, match="ForCausalLM are in plain matrices"):
        quantised(CausalLM(make(config_of(architecture))), 8, 32, "--drafter")

"""Trained drafters in bfloat16: laid out for oneDNN they predict what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.published_heads import save_medusa, save_published, some
from support.tiny_blocks import save_block
from support.tiny_models import config_of, make
from torch import Tensor, nn

from spsbench.models import onednn, packed
from spsbench.models.block_folders import load_block
from spsbench.models.heads import load_chain, load_heads
from spsbench.models.onednn import Product, has_kernels
from spsbench.models.packed import PackedLinear, pack_called
from spsbench.models.reading import read_draft
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the processor has no AVX-512")

FLAG = "--drafter"
HIDDEN, SIZE, LAYERS = 32, 258, 4
TOKENS = (torch.arange(10) * 7) % 250


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def target() -> TorchLM:
    torch.manual_seed(0)
    config = config_of("llama", head_dim=16, num_hidden_layers=LAYERS, vocab_size=SIZE)
    return TorchLM(make(config).to(torch.bfloat16))


def keeping(draft: TrainedDraft, model: TorchLM) -> Any:
    kept = model.with_features(FLAG, draft.states_of(LAYERS))
    kept.score(TOKENS, last=1)
    return kept


def rows_of_a_chain(draft: TrainedDraft, model: TorchLM) -> Tensor:
    kept, chain = keeping(draft, model), load_chain(draft, model, 0, FLAG)
    first, own = chain.extend(TOKENS[1:9], chain.combined(kept.features(0, 8, chain.reads)))
    return torch.cat([first.clone(), chain.extend(TOKENS[9:], own.clone())[0]])


def rows_of_heads(draft: TrainedDraft, model: TorchLM) -> Tensor:
    return load_heads(draft, model, 0, FLAG)(keeping(draft, model).features(8, 9), 2)


def rows_of_a_block(draft: TrainedDraft, model: TorchLM) -> Tensor:
    kept, block = keeping(draft, model), load_block(draft, model, FLAG)
    block.read(kept.features(0, 9, draft.states_of(LAYERS)))
    slots = block.block(TOKENS[9:], 3)
    return torch.cat([slots.logits(place, torch.tensor([place])) for place in range(3)])


Rows = Callable[[TrainedDraft, TorchLM], Tensor]
BLOCK = {"hidden": HIDDEN, "vocab_size": SIZE, "target_layers": LAYERS}
FOLDERS: dict[str, tuple[Callable[[Path], object], Rows]] = {
    "eagle3": (lambda folder: save_published(folder, HIDDEN, SIZE), rows_of_a_chain),
    "eagle3-half": (
        lambda folder: save_published(folder, HIDDEN, SIZE, vocabulary=some(SIZE)),
        rows_of_a_chain,
    ),
    "peagle": (lambda folder: save_published(folder, HIDDEN, SIZE, "peagle"), rows_of_a_chain),
    "medusa": (lambda folder: save_medusa(folder, HIDDEN, SIZE), rows_of_heads),
    "dflash": (lambda folder: save_block(folder, **BLOCK), rows_of_a_block),
    "dflash2": (lambda folder: save_block(folder, kind="dflash2", **BLOCK), rows_of_a_block),
    "dspark": (lambda folder: save_block(folder, kind="dspark", markov="gated", **BLOCK), rows_of_a_block),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_drafter_that_is_laid_out_predicts_as_the_plain_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, rows_of = FOLDERS[kind]
    save(tmp_path / "drafter")
    draft = read_draft(tmp_path / "drafter", FLAG)
    counted: list[int] = []
    right = onednn.product

    def counted_product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        counted.append(len(states))
        return right(states, weight, bias)

    for module in (onednn, packed):
        monkeypatch.setattr(module, "product", counted_product)
    found = rows_of(draft, target())
    assert counted
    counted.clear()
    monkeypatch.setattr(onednn, "has_kernels", lambda: False)
    plain = rows_of(draft, target())
    assert not counted
    finite = plain.isfinite()
    assert torch.equal(found.isfinite(), finite)
    largest = float(plain[finite].abs().max())
    torch.testing.assert_close(found[finite], plain[finite], rtol=0, atol=largest / 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_is_a_linear_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 24).to(dtype)
    multiply, states = Product(layer.weight.detach(), layer.bias.detach()), torch.randn(3, 40).to(dtype)
    assert multiply.nbytes == layer.weight.nbytes + layer.bias.nbytes
    assert multiply.dtype == dtype
    torch.testing.assert_close(multiply(states), layer(states))
    assert multiply._weight.is_mkldnn == (dtype == torch.bfloat16)


def test_a_layer_of_a_net_that_shares_its_weight_stays_plain() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).to(torch.bfloat16)
    net[2].weight = net[1].weight
    pack_called(net)
    assert [type(layer) for layer in net] == [PackedLinear, nn.Linear, nn.Linear]

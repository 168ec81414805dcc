"""Linear layers in bfloat16 whose weights oneDNN has laid out: the same model, or the one it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.tiny_models import config_of, make, pair_of, save
from support.tiny_mtp import save_with_mtp
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.architectures import whole_model
from benchmarks.tiny_types import tiny_config
from spsbench.models import mtp, onednn, packed
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.loading import load
from spsbench.models.memory import forward_bytes
from spsbench.models.mtp import find_modules
from spsbench.models.onednn import has_kernels
from spsbench.models.packed import PackedLinear, pack_layers, stored_weight
from spsbench.models.packed_experts import PackedExperts
from spsbench.models.rewind import RewindCache
from spsbench.models.torch_lm import TorchLM

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the processor has no AVX-512")

IDS = torch.arange(3, 12)[None]
CPU = torch.device("cpu")


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    return whole_model(tiny_config(kind)).to(torch.bfloat16).eval()


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    """Of a text and of a block behind its cache."""
    first = model(IDS, use_cache=True)
    block = model(IDS[:, :4], past_key_values=first.past_key_values, use_cache=True)
    rows: Tensor = torch.cat([first.logits[0], block.logits[0]]).float()
    return rows


def linears(model: Any, kind: type[nn.Module]) -> list[Any]:
    return [part for part in model.modules() if type(part) is kind]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "lfm2", "qwen3_5_text", "deepseek_v3"])
def test_a_packed_model_computes_what_it_did(kind: str) -> None:
    model = tiny(kind)
    before, size = logits(model), sum(part.nbytes for part in model.parameters())
    weights = {part: part.weight.clone() for part in linears(model, nn.Linear)}
    count = pack_layers(model)
    assert count == len(linears(model, PackedLinear)) > 2
    torch.testing.assert_close(logits(model), before, rtol=0, atol=float(before.abs().max()) / 32)
    assert sum(part.nbytes for part in model.parameters()) == size
    for part in linears(model, PackedLinear):
        assert torch.equal(stored_weight(part), weights[part])


def products(model: Any) -> list[set[str]]:
    """The names of the layers that are one product."""
    named: dict[int, set[str]] = {}
    for name, part in model.named_modules():
        if isinstance(part, PackedLinear):
            named.setdefault(id(part.product), set()).add(name.rpartition(".")[2])
    return [*named.values()]


@pytest.mark.parametrize(
    ("kind", "together"),
    [
        ("llama", [{"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}]),
        ("lfm2", [{"w1", "w3"}, {"w2"}]),
        ("qwen3_5_text", [{"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}]),
    ],
)
def test_layers_that_are_given_the_same_states_are_one_product(kind: str, together: list[set[str]]) -> None:
    model = tiny(kind)
    pack_layers(model)
    made = products(model)
    assert all(layers in made for layers in together)
    assert {"lm_head"} in made


def test_a_layer_of_a_product_computes_what_it_is_given() -> None:
    """Alone, out of turn, and of equal states in another tensor."""
    model = tiny("llama")
    plain = copy.deepcopy(model)
    pack_layers(model)
    packed, stored = (each.model.layers[0].self_attn for each in (model, plain))
    first, second = torch.randn(2, 3, model.config.hidden_size).bfloat16()
    for name, states in [
        ("k_proj", first),
        ("q_proj", second),
        ("k_proj", second),
        ("v_proj", first),
        ("q_proj", first.clone()),
    ]:
        assert torch.equal(getattr(packed, name)(states), getattr(stored, name)(states))


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_keeps_its_rows_only_for_an_embedding(tied: bool) -> None:
    torch.manual_seed(0)
    config = tiny_config("llama")
    config.tie_word_embeddings = tied
    model = whole_model(config).to(torch.bfloat16).eval()
    before, rows = logits(model), model.lm_head.weight.detach().clone()
    pack_layers(model)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    assert type(model.lm_head) is PackedLinear
    assert model.lm_head.weight.is_mkldnn is not tied
    assert torch.equal(stored_weight(model.lm_head), rows)
    twin = copy.deepcopy(model)
    assert (twin.lm_head.weight is twin.get_input_embeddings().weight) is tied
    assert torch.equal(logits(twin), before)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=float(before.abs().max()) / 32)


def test_states_that_are_changed_between_two_layers_keep_them_apart() -> None:
    """What a product would compute of such states is wrong; each layer is then packed alone."""

    def double(part: nn.Module, args: tuple[Tensor]) -> None:
        args[0].mul_(2)

    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_pre_hook(double)
    before = logits(model)
    pack_layers(model)
    assert all(len(layers) == 1 for layers in products(model))
    torch.testing.assert_close(logits(model), before, rtol=0, atol=float(before.abs().max()) / 32)


@pytest.mark.parametrize("kind", ["jamba", "longcat_flash"])
def test_a_model_that_reads_its_weights_by_itself_stays_as_it_was(kind: str) -> None:
    model = tiny(kind)
    before = logits(model)
    assert pack_layers(model) == 0
    assert not linears(model, PackedLinear)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("wrong", [lambda product: 1.5 * product, lambda product: product / 0])
def test_a_layout_that_computes_otherwise_is_taken_back(
    wrong: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, input: wrong(right(self, input)))
    model = tiny("llama")
    before = logits(model)
    assert pack_layers(model) == 0
    assert torch.equal(logits(model), before)


def test_other_precisions_and_processors_keep_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack_layers(tiny("llama").float()) == 0
    assert pack_layers(tiny("llama").half()) == 0
    monkeypatch.setattr(onednn, "has_kernels", lambda: False)
    assert pack_layers(tiny("llama")) == 0


def test_a_copy_is_plain_and_may_be_cast() -> None:
    """As the witness of a proof in float32 is made."""
    model = tiny("qwen3_moe")
    plain = copy.deepcopy(model)
    assert pack_layers(model) > 2
    twin = copy.deepcopy(model)
    assert not linears(twin, PackedLinear)
    assert torch.equal(logits(twin), logits(plain))
    assert torch.equal(logits(twin.float()), logits(plain.float()))
    assert linears(model, PackedLinear), "the copy has changed the model"


@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_moe",
        "gpt_oss",  # transposed, with biases and a gate of its own
        "nemotron_h",  # without a gate
        "deepseek_v3",
    ],
)
def test_experts_are_packed_one_by_one(kind: str) -> None:
    model = tiny(kind)
    plain = copy.deepcopy(model)
    pack_layers(model)
    packed = [part for part in model.modules() if isinstance(part, PackedExperts)]
    assert packed
    assert forward_bytes(model) == forward_bytes(plain)
    before = logits(plain)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=float(before.abs().max()) / 32)
    for token in range(3, 9):  # whose experts are called in another order
        ids = torch.tensor([[token]])
        with torch.inference_mode():
            single, found = (each(ids, use_cache=False).logits for each in (plain, model))
        torch.testing.assert_close(found, single, rtol=0, atol=float(single.abs().max()) / 32)
    twin = copy.deepcopy(model)
    assert not any(isinstance(part, PackedExperts) for part in twin.modules())
    assert twin.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(weight, twin.state_dict()[name]) for name, weight in plain.state_dict().items())
    assert torch.equal(logits(twin.float()), logits(plain.float()))


def test_experts_that_compute_otherwise_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PackedExperts.forward
    monkeypatch.setattr(PackedExperts, "forward", lambda self, *given: 1.5 * right(self, *given))
    model = tiny("qwen3_moe")
    before = logits(model)
    assert pack_layers(model) > 2, "its layers are packed alone"
    assert not any(isinstance(part, PackedExperts) for part in model.modules())
    torch.testing.assert_close(logits(model), before, rtol=0, atol=float(before.abs().max()) / 32)


@pytest.mark.parametrize("shape", [(1024,), (1, 1024), (1, 1, 1024), (3, 1024)])
@pytest.mark.parametrize("out", [64, 1024], ids=["small", "large"])
def test_one_row_by_a_large_weight_is_multiplied_as_several(
    shape: tuple[int, ...], out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out, 1024, generator=generator).bfloat16()
    states = torch.randn(shape, generator=generator).bfloat16()
    rows: list[int] = []
    usual = torch.ops.mkldnn._linear_pointwise

    def multiply(states: Tensor, *others: Any) -> Tensor:
        rows.append(states.numel() // states.shape[-1])
        return usual(states, *others)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", multiply)
    found = onednn.product(states, onednn.laid_out(weight))
    expected = torch.nn.functional.linear(states, weight)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.5)
    assert found.shape == expected.shape
    assert rows == [3 if shape[0] == 3 else 4 if out == 1024 else 1]


def test_an_expert_without_tokens_has_no_rows() -> None:
    model = tiny("llama")
    pack_layers(model)
    part = linears(model, PackedLinear)[0]
    assert part(torch.empty(0, part.in_features, dtype=torch.bfloat16)).shape == (0, part.out_features)


def test_a_model_is_packed_when_it_is_loaded_in_bfloat16(tmp_path: Path) -> None:
    source = pair_of(save(make(config_of("llama")), tmp_path / "model")).target
    by_dtype = {
        dtype: load(source, dtype, CPU, source.tokenizer.size, "--target", "torch")
        for dtype in ("bfloat16", "float32")
    }
    assert linears(by_dtype["bfloat16"].model, PackedLinear)  # type: ignore[attr-defined]
    assert not linears(by_dtype["float32"].model, PackedLinear)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "deepseek_v3"])
def test_a_body_without_a_head_is_packed_by_its_states(kind: str) -> None:
    """As a drafter's is, which reads states instead of ids: another width than its own leaves it plain."""
    body = tiny(kind).get_decoder()
    states = torch.randn(1, 4, body.config.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        before = body(inputs_embeds=states).last_hidden_state.float()
        assert pack_layers(body, 2 * body.config.hidden_size) == 0
        assert pack_layers(body, body.config.hidden_size) == len(linears(body, PackedLinear)) > 2
        after = body(inputs_embeds=states).last_hidden_state.float()
    torch.testing.assert_close(after, before, rtol=0, atol=float(before.abs().max()) / 32)


def test_a_module_in_bfloat16_is_packed_and_predicts_as_the_plain_one(tmp_path: Path) -> None:
    saved = save_with_mtp("glm4-moe", tmp_path / "t")
    model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16).eval()
    names, tokens = find_modules(Checkpoint(saved), model.config).modules[0], torch.tensor([5, 9, 4])
    states = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = []
    for pack in (pack_layers, lambda *_: 0):
        with patch.object(packed, "pack_layers", pack):
            module = mtp.MtpModule(Checkpoint(saved), names, 0, False, TorchLM(model))
        with torch.inference_mode():
            found.append(module.run(tokens, states, RewindCache()).float())
        assert bool(linears(module, PackedLinear)) is (pack is pack_layers)
    torch.testing.assert_close(*found, rtol=0, atol=float(found[1].abs().max()) / 32)

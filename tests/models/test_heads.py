"""Heads compute the same over ONNX Runtime, over torch and by hand; they forget exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_heads import layer_config, save_head
from support.tiny_models import config_of, make, over_onnx, pair_of, save
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import LlamaModel

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.heads import load_chain, load_heads
from spsbench.models.loading import load_torch
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import read_trained

FLAG = "--drafter"
HIDDEN, TOKENS, SIZE = 32, 250, 258
SOME = [*range(0, 250, 3), 257]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def llama() -> TorchLM:
    return TorchLM(make(config_of("llama", head_dim=16)))


def targets() -> tuple[CausalLM, TorchLM]:
    """One model over both backends."""
    torch_lm = llama()
    return over_onnx(torch_lm.model), torch_lm


def entries(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(TOKENS, (n,), generator=generator), torch.randn(n, HIDDEN, generator=generator)


def by_hand(folder: Path, target: TorchLM, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """(logits [n, m] of the head's vocabulary, predicted features [n, hidden]) without a cache."""
    stored = load_file(folder / "model.safetensors")
    body = LlamaModel(layer_config(HIDDEN)).eval()
    layers = {name.removeprefix("model."): part.float() for name, part in stored.items() if "model." in name}
    body.load_state_dict(layers, strict=False)
    table = target.model.get_input_embeddings().weight
    states = torch.cat([table[tokens], features], dim=-1) @ stored["fc.weight"].float().T
    predicted = body(inputs_embeds=states.unsqueeze(0), use_cache=False).last_hidden_state[0]
    head = target.model.lm_head.weight
    ids = stored["vocabulary"].long() if "vocabulary" in stored else torch.arange(len(head))
    return predicted @ head[ids].T, predicted


@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_chain_is_the_layer_behind_the_product(
    tmp_path: Path, vocabulary: list[int] | None, dtype: torch.dtype
) -> None:
    """A prompt, a block, and one entry after another from its own features."""
    onnx, torch_lm = targets()
    folder = save_head(tmp_path / "head", torch_lm, vocabulary=vocabulary, dtype=dtype)
    draft = read_trained(folder, FLAG)
    tokens, features = entries(12)
    for target in (onnx, torch_lm):
        chain = load_chain(draft, target, 0, FLAG)
        fed = features.clone()
        for start, end in ((0, 7), (7, 10), (10, 11), (11, 12)):
            logits, predicted = chain.extend(tokens[start:end], fed[start:end])
            expected, states = by_hand(folder, torch_lm, tokens[:end], fed[:end])
            kept = torch.arange(SIZE) if vocabulary is None else torch.tensor(vocabulary)
            assert torch.allclose(logits[0, kept], expected[-1], atol=2e-4)
            assert torch.allclose(predicted[0], states[-1], atol=2e-4)
            assert logits.shape == (1, target.vocab_size)
            outside = torch.ones(target.vocab_size, dtype=torch.bool).index_fill(0, kept, False)
            assert bool((logits[0, outside] == float("-inf")).all())
            if 10 <= end < 12:
                fed[end] = predicted[0]


@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("kept", [0, 3, 8])
def test_after_a_rollback_it_is_as_a_fresh_one(tmp_path: Path, backend: str, kept: int) -> None:
    onnx, torch_lm = targets()
    target = onnx if backend == "onnx" else torch_lm
    draft = read_trained(save_head(tmp_path / "head", target), FLAG)
    tokens, features = entries(8)
    used, fresh = (load_chain(draft, target, 0, FLAG) for _ in range(2))
    used.extend(tokens, features)
    used.rollback(kept)
    assert used.length == kept
    others, states = entries(4, seed=2)
    found = [part.clone() for part in used.extend(others, states)]
    if kept:
        fresh.extend(tokens[:kept], features[:kept])
    for part, expected in zip(found, fresh.extend(others, states), strict=True):
        assert torch.allclose(part, expected, atol=1e-5)
    stale = load_chain(draft, target, 0, FLAG)
    stale.extend(tokens, features)
    if kept < 8:
        assert not torch.allclose(stale.extend(others, states)[0], found[0], atol=1e-3)


@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all", "some"])
def test_medusa_heads_are_the_formula(tmp_path: Path, vocabulary: list[int] | None) -> None:
    onnx, torch_lm = targets()
    folder = save_head(tmp_path / "head", torch_lm, "medusa", vocabulary=vocabulary)
    stored = load_file(folder / "model.safetensors")
    _, features = entries(2)
    head = torch_lm.model.lm_head.weight
    kept = torch.arange(SIZE) if vocabulary is None else torch.tensor(vocabulary)
    for target in (onnx, torch_lm):
        heads = load_heads(read_trained(folder, FLAG), target, 0, FLAG)
        assert heads.count == 3
        for feature, places in ((features[:1], 3), (features[1:], 1), (features[:1], 2), (features[1:], 3)):
            rows = heads(feature, places)
            assert rows.shape == (places, SIZE)
            for j in range(places):
                weight, bias = stored[f"heads.{j}.weight"], stored[f"heads.{j}.bias"]
                expected = (feature + silu(linear(feature, weight, bias))) @ head[kept].T
                assert torch.allclose(rows[j, kept], expected[0], atol=1e-4)
            assert int(rows.isfinite().sum()) == places * len(kept)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_rounded_matrices_are_fewer_bytes_and_nearly_the_same(tmp_path: Path, kind: str) -> None:
    target, _ = targets()
    draft = read_trained(save_head(tmp_path / "head", target, kind), FLAG)
    load = load_chain if kind == "eagle" else load_heads
    plain, rounded = (load(draft, target, bits, FLAG) for bits in (0, 8))
    assert rounded.forward_bytes() < 0.4 * plain.forward_bytes()
    token, feature = entries(1)
    if kind == "eagle":
        one, other = (chain.extend(token, feature)[0] for chain in (plain, rounded))  # type: ignore[union-attr]
    else:
        one, other = (heads(feature, 3) for heads in (plain, rounded))  # type: ignore[operator]
    assert 0 < float((one - other).abs().max()) < 0.1 * float(one.abs().max())


def test_both_backends_read_as_many_bytes(tmp_path: Path) -> None:
    onnx, torch_lm = targets()
    for kind, load in (("eagle", load_chain), ("medusa", load_heads)):
        draft = read_trained(save_head(tmp_path / kind, onnx, kind, vocabulary=SOME), FLAG)
        sizes = [load(draft, target, 0, FLAG).forward_bytes() for target in (onnx, torch_lm)]  # type: ignore[operator]
        assert sizes[0] == sizes[1]
        assert 4 * len(SOME) * HIDDEN < sizes[0] < 4 * 1_000_000


def test_weights_are_shared_and_caches_are_not(tmp_path: Path) -> None:
    target, _ = targets()
    draft = read_trained(save_head(tmp_path / "head", target), FLAG)
    one, other = (load_chain(draft, target.with_features(FLAG), 0, FLAG) for _ in range(2))
    assert one._session is other._session  # type: ignore[attr-defined]
    tokens, features = entries(3)
    one.extend(tokens, features)
    assert (one.length, other.length) == (3, 0)


def test_a_smaller_shared_vocabulary_cuts_the_heads(tmp_path: Path) -> None:
    model = make(config_of("llama", head_dim=16))
    for target in (over_onnx(model, 200), TorchLM(model, 200)):
        folder = tmp_path / target.backend
        for name, vocabulary in (("all", None), ("some", SOME)):
            draft = read_trained(save_head(folder / name, target, vocabulary=vocabulary), FLAG)
            logits, _ = load_chain(draft, target, 0, FLAG).extend(*entries(2))
            assert logits.shape == (1, 200)
            assert int(logits.isfinite().sum()) == (200 if vocabulary is None else 67)


BAD = {
    "no description": ("is not a trained draft: it has no draft.json", UnavailableError),
    "no weights": ("is not a trained draft: it has no model.safetensors", UnavailableError),
    "damaged": ("its draft.json cannot be read", UnavailableError),
    "incomplete": ("its draft.json is incomplete", UnavailableError),
    "another format": ("is of format 2; this version reads format 1", UsageError),
    "another kind": ("is of the kind tree", UsageError),
    "ids out of range": ("the vocabulary of .* has ids outside of 0 to 257", UsageError),
    "ids in disorder": ("the vocabulary of .* is not ascending", UsageError),
    "no ids": ("the vocabulary of .* is not a list of token ids", UsageError),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_folder_that_is_none_is_refused(tmp_path: Path, fault: str) -> None:
    said, kind = BAD[fault]
    told = {"another format": {"format": 2}, "another kind": {"kind": "tree"}, "incomplete": {"target": {}}}
    ids = {"ids out of range": [3, 258], "ids in disorder": [3, 2], "no ids": []}
    folder = save_head(tmp_path / "h", llama(), told=told.get(fault), vocabulary=ids.get(fault))
    if fault == "no description":
        (folder / "draft.json").unlink()
    if fault == "no weights":
        (folder / "model.safetensors").unlink()
    if fault == "damaged":
        (folder / "draft.json").write_text("{")
    with pytest.raises(kind, match=rf"--drafter: .*{said}.* [A-Z]"):
        read_trained(folder, FLAG)


def test_a_head_for_another_target_is_refused(tmp_path: Path) -> None:
    target, other = llama(), TorchLM(make(config_of("llama", head_dim=16), seed=1))
    wide = TorchLM(make(config_of("llama", head_dim=16, hidden_size=64)))
    more = TorchLM(make(config_of("llama", head_dim=16, vocab_size=300)))
    draft = read_trained(save_head(tmp_path / "head", target), FLAG)
    load_chain(draft, target, 0, FLAG)
    for wrong, said in (
        (other, "the embedding sha256:"),
        (wide, "width 32; .* has 64"),
        (more, "258; .* 300"),
    ):
        with pytest.raises(UsageError, match=rf"--drafter: .*was made for tiny, with .*{said}.*Choose that"):
            load_chain(draft, wrong, 0, FLAG)


def test_a_coarser_target_is_known_by_its_files(tmp_path: Path) -> None:
    """As with a small draft: in bfloat16 the table that is loaded is another one."""
    found = pair_of(save(make(config_of("llama", head_dim=16)), tmp_path / "model")).target
    cpu, dtypes = torch.device("cpu"), ("float32", "bfloat16")
    loaded = [load_torch(found, dtype, cpu, 258, "--target") for dtype in dtypes]
    draft = read_trained(save_head(tmp_path / "head", loaded[0]), FLAG)
    for target in loaded:
        load_chain(draft, target.twin(), 0, FLAG)


def test_both_backends_know_a_target_by_the_same_embedding() -> None:
    onnx, torch_lm = targets()
    assert onnx.embedding_fingerprint() == torch_lm.embedding_fingerprint()
    assert onnx.embedding_shape == torch_lm.embedding_shape == (258, 32)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_weights_that_do_not_fit_their_description_are_refused(tmp_path: Path, backend: str) -> None:
    onnx, torch_lm = targets()
    target = onnx if backend == "onnx" else torch_lm
    fault = "does not hold the head that it describes: "

    def refused(folder: Path, said: str) -> None:
        with pytest.raises(UnavailableError, match=said):
            load_chain(read_trained(folder, FLAG), target, 0, FLAG)

    medusa = save_head(tmp_path / "medusa", target, "medusa")
    described = json.loads((medusa / "draft.json").read_text())
    layer = layer_config(HIDDEN).to_dict()
    (medusa / "draft.json").write_text(json.dumps(described | {"kind": "eagle", "config": layer}))
    refused(medusa, "is not a trained draft: of 1 layers that it describes 0 are stored")
    narrow = layer_config(64).to_dict()
    refused(save_head(tmp_path / "wide", target, told={"config": narrow}), f"{fault}its layer is 64 wide")
    deep = layer_config(HIDDEN, intermediate_size=32).to_dict()
    refused(save_head(tmp_path / "deep", target, told={"config": deep}), f"{fault}model.layers.0.mlp")


def test_what_a_backend_cannot_do_is_refused_with_a_way_out(tmp_path: Path) -> None:
    onnx, torch_lm = targets()
    folder = save_head(tmp_path / "narrow", onnx, config={"head_dim": 8})
    load_chain(read_trained(folder, FLAG), torch_lm, 0, FLAG)
    with pytest.raises(UsageError, match=r"cannot be built over onnxruntime: heads of 8.*--backend torch"):
        load_chain(read_trained(folder, FLAG), onnx, 0, FLAG)
    with pytest.raises(UsageError, match=r"over onnxruntime; this is eagle over torch.*Leave it out"):
        load_chain(read_trained(folder, FLAG), torch_lm, 8, FLAG)
    with pytest.raises(SpsbenchError, match=r"bits=3 is not valid.*bits=8 or bits=4"):
        load_chain(read_trained(folder, FLAG), onnx, 3, FLAG)

"""A trained small draft computes what its layers do under its target's embedding and head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_heads import save_head, save_small
from support.tiny_models import TOKENS, config_of, make, pair_of, save
from torch import Tensor

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.config.models import ONNXRUNTIME, QUANTISED, TORCH
from spsbench.models.batched import StaticLM, require_same_answers
from spsbench.models.causal_lm import CausalLM, require_exact_rollback, self_test
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.memory import weight_bytes
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.pair import Pair, PairSource, load_pair
from spsbench.models.source import find
from spsbench.models.torch_lm import TorchLM

CPU = torch.device("cpu")
BACKENDS = (ONNXRUNTIME, TORCH)
SOME = [*range(0, 250, 3), 257]
FLOAT32 = ("float32", "float32")
IDS = torch.randint(TOKENS, (30,), generator=torch.Generator().manual_seed(1))


def tiny(**changes: Any) -> Any:
    """Whole heads of 16, as ONNX Runtime wants them."""
    return make(config_of("llama", **{"head_dim": 16} | changes))


def folders(
    tmp_path: Path, model: Any, vocabulary: Sequence[int] | None = SOME, **changes: Any
) -> tuple[Path, Path]:
    """(target, draft of its first two layers)."""
    target = save(model, tmp_path / "target")
    draft = save_small(tmp_path / "draft", TorchLM(model), model, vocabulary=vocabulary, **changes)
    return target, draft


def source(tmp_path: Path, model: Any, vocabulary: Sequence[int] | None = SOME, **changes: Any) -> PairSource:
    return pair_of(*folders(tmp_path, model, vocabulary, **changes))


def load(found: PairSource, backend: str, dtypes: tuple[str, str] = FLOAT32) -> Pair:
    return load_pair(found, dtypes, CPU, backend, threads=1)


def by_hand(model: Any, vocabulary: Sequence[int] | None, ids: Tensor, layers: int = 2) -> Tensor:
    """[n, V] of the first layers, the norm and the head, other tokens at minus infinity."""
    rows = TorchLM(model).truncated(layers, "").score_uncached(ids)
    if vocabulary is not None:
        never = torch.ones(rows.shape[-1], dtype=torch.bool)
        never[list(vocabulary)] = False
        rows = rows.masked_fill(never, float("-inf"))
    return rows


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_rows_are_those_of_its_layers_cached_and_uncached(
    tmp_path: Path, backend: str, vocabulary: list[int] | None, tied: bool
) -> None:
    model = tiny(tie_word_embeddings=tied)
    draft = load(source(tmp_path, model, vocabulary), backend).draft
    assert draft.backend == backend
    expected = by_hand(model, vocabulary, IDS)
    close = {"atol": 1e-4, "rtol": 1e-4}
    assert torch.allclose(draft.score_uncached(IDS), expected, **close)
    assert torch.allclose(draft.score_uncached(IDS, last=4), expected[-4:], **close)
    draft.rollback(0)
    assert torch.allclose(draft.score(IDS[:20], last=1), expected[19:20], **close)
    draft.score(IDS[:5], last=5)
    draft.rollback(20)
    assert torch.allclose(draft.score(IDS[20:], last=10), expected[20:], **close)
    assert draft.score(IDS[:1], last=1).shape == (1, TOKENS)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all", "some"])
def test_sizes_are_of_its_layers_and_its_rows_of_the_head(
    tmp_path: Path, vocabulary: list[int] | None, tied: bool
) -> None:
    found = source(tmp_path, tiny(tie_word_embeddings=tied), vocabulary)
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    layers = sum(part.numel() for name, part in stored.items() if name != "vocabulary")
    wanted = layers + (TOKENS if vocabulary is None else len(vocabulary)) * 32
    size = weight_bytes(found.draft, "float32", "--draft")
    assert size == 4 * (wanted + (0 if vocabulary is None else len(vocabulary)))
    for backend in BACKENDS:
        pair = load(found, backend)
        assert pair.draft.parameters == wanted == pair.info["draft"]["parameters"]
        assert pair.draft.forward_bytes() == 4 * wanted
        assert pair.draft.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
        assert pair.info["draft"].get("vocabulary") == (None if vocabulary is None else len(vocabulary))


def test_tensors_are_its_targets(tmp_path: Path) -> None:
    found = source(tmp_path, tiny())
    target, draft = (model.model for model in torch_models(load(found, TORCH)))
    assert draft.get_input_embeddings().weight is target.get_input_embeddings().weight
    assert target.get_output_embeddings().weight.shape == (TOKENS, 32)
    whole = pair_of(tmp_path / "target", save_small(tmp_path / "all", TorchLM(tiny()), tiny()))
    target, draft = (model.model for model in torch_models(load(whole, TORCH)))
    assert draft.get_output_embeddings().weight is target.get_output_embeddings().weight
    onnx = load(found, ONNXRUNTIME)
    assert onnx.draft.embedding_fingerprint() == onnx.target.embedding_fingerprint()
    references = onnx.target.reference(), onnx.draft.reference()
    target, draft = (model.model for model in references)
    assert draft.get_input_embeddings().weight is target.get_input_embeddings().weight


def torch_models(pair: Pair) -> list[TorchLM]:
    models = [model for model in (pair.target, pair.draft) if isinstance(model, TorchLM)]
    assert len(models) == 2
    return models


@torch.inference_mode()
def test_the_reference_gives_the_same_rows(tmp_path: Path) -> None:
    draft = load(source(tmp_path, tiny()), ONNXRUNTIME).draft
    assert torch.allclose(draft.reference().score_uncached(IDS), draft.score_uncached(IDS), atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@torch.inference_mode()
def test_a_rounded_draft_of_a_float32_target(tmp_path: Path, dtype: str) -> None:
    model = tiny()
    found = source(tmp_path, model)
    plain, rounded = (load(found, ONNXRUNTIME, ("float32", name)) for name in ("float32", dtype))
    assert rounded.info["target"]["dtype"] == "float32"
    assert rounded.info["draft"]["dtype"] == dtype
    assert rounded.draft.forward_bytes() < 0.4 * plain.draft.forward_bytes()
    rows, expected = (pair.draft.score_uncached(IDS) for pair in (rounded, plain))
    assert torch.equal(rows.isneginf(), expected.isneginf())
    assert not torch.equal(rows, expected)
    # As where the whole model is rounded and its first layers are taken: blocks are within a row.
    whole = OnnxLM(model.config, LoadedWeights(model), TOKENS, 1, lambda: TorchLM(model), 2, QUANTISED[dtype])
    assert torch.allclose(rows[:, SOME], whole.score_uncached(IDS)[:, SOME], atol=1e-4)
    assert isinstance(plain.draft, OnnxLM)
    if dtype == "int8":
        assert torch.equal(plain.draft.rounded(8).score_uncached(IDS), rows)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_it_can_be_cut_and_keep_its_states(tmp_path: Path, backend: str) -> None:
    model = tiny()
    draft = load(source(tmp_path, model), backend).draft
    one = draft.truncated(1, "--drafter")
    assert torch.allclose(one.score_uncached(IDS), by_hand(model, SOME, IDS, layers=1), atol=1e-4)
    require_exact_rollback(one, "cut")
    keeping = draft.with_features("--drafter")
    rows = keeping.score(IDS, last=30).clone()
    assert torch.allclose(rows, by_hand(model, SOME, IDS), atol=1e-4)
    head = model.get_output_embeddings().weight
    assert torch.allclose(keeping.features(0, 30) @ head[SOME].T, rows[:, SOME], atol=1e-3)


@torch.inference_mode()
def test_rows_of_one_copy_are_not_overwritten_by_another(tmp_path: Path) -> None:
    draft = load(source(tmp_path, tiny()), ONNXRUNTIME).draft
    draft.rollback(0)
    mine = draft.score(IDS, last=1)
    before = mine.clone()
    draft.with_features("--drafter").score(IDS[:5], last=1)
    draft.truncated(1, "--drafter").score(IDS[:5], last=1)
    draft.score_uncached(IDS[:5])
    assert torch.equal(mine, before)


@torch.inference_mode()
def test_a_coarser_target_over_torch_keeps_its_draft(tmp_path: Path) -> None:
    """The embedding is known by the files: in bfloat16 the table that is loaded is another one."""
    found = source(tmp_path, tiny(), scale=0.1)
    for dtypes, own in ((("bfloat16",) * 2, True), (("bfloat16", "float32"), False)):
        target, draft = torch_models(load(found, TORCH, dtypes))
        tables = [model.model.get_input_embeddings().weight for model in (target, draft)]
        assert (tables[0] is tables[1]) == own
        assert draft.weights == dtypes[1]


@torch.inference_mode()
def test_padding_of_the_embedding_is_no_token(tmp_path: Path) -> None:
    model = tiny(vocab_size=272)
    found = source(tmp_path, model, [*SOME, 270])
    for backend in BACKENDS:
        draft = load(found, backend).draft
        assert draft.score(IDS, last=1).shape == (1, 272)
        assert draft.vocabulary.tolist() == [*SOME, 270]


def test_it_can_be_asked_outside_of_the_mode_that_it_was_tested_in(tmp_path: Path) -> None:
    draft = load(source(tmp_path, tiny()), ONNXRUNTIME).draft  # the self-test is in inference mode
    with torch.no_grad():
        draft.rollback(0)
        assert torch.allclose(draft.score(IDS, last=2), by_hand(tiny(), SOME, IDS)[-2:], atol=1e-4)


class Leaky(TorchLM):
    """A draft that gives a token outside of its vocabulary a chance."""

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        rows = super().score_uncached(tokens, last).clone()
        rows[:, 1] = -3.0
        return rows


class Shifted(TorchLM):
    """A draft whose cache is off by one token after a rollback."""

    def rollback(self, length: int) -> None:
        super().rollback(max(length - 1, 0))


@pytest.mark.parametrize(("kind", "said"), [(Leaky, "outside of its vocabulary"), (Shifted, "differ by")])
def test_the_self_test_sees_faults_of_a_draft_with_a_vocabulary(
    tmp_path: Path, kind: type[TorchLM], said: str
) -> None:
    good = torch_models(load(source(tmp_path, tiny()), TORCH))[1]
    bad = kind(good.model)
    bad.vocabulary = good.vocabulary
    with pytest.raises(UsageError, match=said):
        require_exact_rollback(bad, "draft")


def test_its_self_test_is_finite_and_not_blind(tmp_path: Path) -> None:
    for backend in BACKENDS:
        result = self_test(load(source(tmp_path / backend, tiny()), backend).draft)
        assert 0 <= result.cached < 1e-4
        assert 0 <= result.rolled_back < 1e-4
        assert 1 < result.scale < 100
        assert result.bits == self_test(load(pair_of_saved(tmp_path / backend), backend).draft).bits


def pair_of_saved(folder: Path) -> PairSource:
    return pair_of(folder / "target", folder / "draft")


@torch.inference_mode()
def test_fixed_shapes_give_the_same_rows(tmp_path: Path) -> None:
    draft = torch_models(load(source(tmp_path, tiny()), TORCH))[1]
    static = StaticLM(draft, 40)
    require_same_answers(draft, static, 40)
    draft.rollback(0)
    expected = draft.score(IDS, last=3)
    assert torch.allclose(static.score(IDS.unsqueeze(0), [0], last=3)[0], expected, atol=1e-4)


def test_heads_are_no_draft_model_and_a_draft_is_no_target(tmp_path: Path) -> None:
    model = tiny()
    target, draft = folders(tmp_path, model)
    head = save_head(tmp_path / "head", TorchLM(model))
    with pytest.raises(UsageError, match=rf"--draft: .*of the kind eagle.*--drafter heads:from={head}"):
        pair_of(target, head)
    with pytest.raises(UsageError, match=r"--target: .*is a trained draft.*Give it as --draft"):
        pair_of(draft, draft)
    with pytest.raises(UsageError, match=r"--target: .*is a trained draft"):
        find(str(draft), None, "--target")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 64}, "hidden states of width 32; this target has 64"),
        ({"vocab_size": 272}, "a vocabulary of 258; this target has 272"),
        ({"initializer_range": 0.2}, "the embedding sha256:.*; this target has sha256:"),
    ],
)
def test_another_target_is_refused_before_anything_is_loaded(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    _, draft = folders(tmp_path, tiny())
    other = save(tiny(**changes), tmp_path / "other")
    with pytest.raises(UsageError, match=f"--draft: .*was made for tiny, with {said}.*Choose that target"):
        pair_of(other, draft)


def test_a_target_without_files_at_hand_is_asked_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a hub model that is not downloaded yet, or one that torch alone can read."""
    _, draft = folders(tmp_path, tiny())
    other = save(tiny(initializer_range=0.2), tmp_path / "other")
    for module in ("source", "loading"):
        monkeypatch.setattr(f"spsbench.models.{module}.embedding_of", lambda *_: None)
    found = pair_of(other, draft)
    for backend in BACKENDS:
        with pytest.raises(UsageError, match="the embedding sha256:"):
            load(found, backend)


def described(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "draft.json").read_text())
    told["config"] |= changes
    (folder / "draft.json").write_text(json.dumps(told))


def test_a_folder_that_is_not_as_it_says_is_refused(tmp_path: Path) -> None:
    target, draft = folders(tmp_path, tiny())
    file = draft / "model.safetensors"
    whole = load_file(file)
    for backend in BACKENDS:
        save_file({name: part for name, part in whole.items() if "1.mlp.up" not in name}, file)
        with pytest.raises(UnavailableError, match=r"--draft: .*incomplete: 1 .*layers\.1\.mlp\.up_proj"):
            load(pair_of(target, draft), backend)
        save_file(whole | {"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}, file)
        with pytest.raises(UnavailableError, match=r"--draft: .*cannot be read"):
            load(pair_of(target, draft), backend)
    save_file(whole | {"model.norm.weight": torch.zeros(32, dtype=torch.int32)}, file)
    with pytest.raises(UnavailableError, match="not floats of 16 or 32 bits"):
        pair_of(target, draft)
    save_file(whole, file)
    described(draft, hidden_size=64)
    with pytest.raises(UnavailableError, match="its layers are 64 wide, its target 32"):
        pair_of(target, draft)
    described(draft, hidden_size=32, model_type="qwen2")
    with pytest.raises(UsageError, match="has layers of qwen2, its target is a llama"):
        pair_of(target, draft)


def test_its_identity_is_that_of_its_files(tmp_path: Path) -> None:
    target, draft = folders(tmp_path, tiny())
    first, again = (pair_of(target, draft).identity()["draft"] for _ in range(2))
    assert first == again
    assert (first["name"], first["revision"]) == (str(draft), None)
    file = draft / "model.safetensors"
    stored = load_file(file)
    save_file(stored | {"model.norm.weight": stored["model.norm.weight"] + 1}, file)
    assert pair_of(target, draft).identity()["draft"]["fingerprint"] != first["fingerprint"]


def test_a_shipped_draft_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = folders(tmp_path / "tiny", tiny())
    monkeypatch.setattr("spsbench.base.paths.drafts_dir", lambda: tmp_path)
    found = pair_of(target, "embedded:tiny/draft")
    assert (found.draft.name, found.draft.location) == ("embedded:tiny/draft", str(draft))
    assert isinstance(load(found, ONNXRUNTIME).draft, CausalLM)
    with pytest.raises(UnavailableError, match=r"--draft: embedded:tiny/other is not in this package"):
        pair_of(target, "embedded:tiny/other")
    assert find("embedded:mini/draft", None, "--draft").is_local

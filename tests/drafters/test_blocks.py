"""Block drafters, MTP modules and assistants draw from the rows that they show, and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.tiny_blocks import BLOCK, save_block
from support.tiny_models import config_of, make, over_onnx
from support.tiny_mtp import make_gemma4, save_assistant, save_speculators_mtp, save_with_mtp
from torch import Tensor

from benchmarks.tiny_types import tiny_config
from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop, start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import Draft
from spsbench.decode.sampling import UniformStream, warp
from spsbench.drafters.blocks import PathDrafter
from spsbench.drafters.registry import Context, build_drafter, drafter_kind
from spsbench.models.block_folders import form_of, load_block
from spsbench.models.causal_lm import CausalLM, built
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.mtp import MtpModule, NoModules, find_modules
from spsbench.models.reading import read_draft
from spsbench.models.rewind import RewindCache
from spsbench.models.speculators import FINGERPRINT
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import assert_lossless

CPU, FLAG = torch.device("cpu"), "--drafter"
V, LAYERS = 24, 4
PROMPT = [7, 3, 11, 20, 14, 9, 9, 3]
GREEDY, PLAIN = SamplingParams(greedy=True), SamplingParams()
SAMPLINGS = {"greedy": GREEDY, "plain": PLAIN, "nucleus": SamplingParams(temperature=0.8, top_p=0.9)}
TARGET = {"hidden": 32, "vocab_size": V, "target_layers": LAYERS}
FOLDERS: dict[str, dict[str, Any]] = {
    "dflash": {"kind": "dflash"},
    "dflash-sliding": {"kind": "dflash", "sliding": 4},
    "dflash-authors": {"kind": "dflash", "writer": "z-lab"},
    "dflash2": {"kind": "dflash2"},
    "dspark": {"kind": "dspark", "drafted": 8},
    "dspark-gated": {"kind": "dspark", "markov": "gated"},
    "dspark-rnn": {"kind": "dspark", "markov": "rnn", "writer": "deepspec"},
}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def qwen3() -> Any:
    return make(config_of("qwen3", vocab_size=V, bos_token_id=None, eos_token_id=None))


def loaded(folder: Path) -> TorchLM:
    from transformers import AutoModelForCausalLM

    target = TorchLM(AutoModelForCausalLM.from_pretrained(folder).eval())
    target.files = folder
    return target


def case(name: str, folder: Path) -> tuple[TorchLM, Spec]:
    """A target and a drafter over it."""
    if name in FOLDERS:
        saved = save_block(folder / name, **TARGET, **FOLDERS[name])
        return TorchLM(qwen3()), Spec("heads", (("from", str(saved)),))
    if name == "assistant":
        saved = save_assistant(folder / name, V)
        return TorchLM(make_gemma4(V)), Spec("assistant", (("from", str(saved)),))
    if name == "mtp-apart":
        saved = save_speculators_mtp(folder / name, qwen3().config, "tiny")
        return TorchLM(qwen3()), Spec("mtp", (("from", str(saved)),))
    family, _, modules = name.removeprefix("mtp-").partition(":")
    sizes = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None}
    saved = save_with_mtp(family, folder / "target", modules=int(modules or 1), **sizes)
    return loaded(saved), Spec("mtp")


def context(target: CausalLM, spec: Spec, sampling: SamplingParams, k: int) -> Context:
    reads = drafter_kind(spec.name).states_of(spec, target.layers)
    kept = target.with_features(FLAG, reads)
    return Context(kept, None, sampling, CPU, kept.vocab_size, hidden=kept, k=k)


def loops(given: Context, spec: Spec | None, k: int, prompt: Sequence[int] = PROMPT) -> Iterator[DecodedLoop]:
    assert isinstance(given.target, CausalLM)
    drafter = None if spec is None else build_drafter(spec, given)
    begin = start(given.target, drafter, prompt, k, given.sampling, UniformStream(3, CPU))
    return begin(Stopwatch(FakeClock()))


def text_of(many: Iterator[DecodedLoop], count: int) -> list[int]:
    tokens: list[int] = []
    for loop in many:
        tokens += loop.tokens
        if len(tokens) >= count:
            break
    return tokens[:count]


NAMES = [*FOLDERS, "assistant", "mtp-apart", "mtp-glm4-moe", "mtp-deepseek-v3:2"]


@pytest.mark.thorough_but(
    "plain-4-dspark-rnn", "nucleus-3-dflash2", "plain-4-mtp-glm4-moe", "plain-4-dflash]"
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 3, 4, 7])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rows_are_those_of_an_uncached_forward(sampling: str, k: int, name: str, tmp_path: Path) -> None:
    """Loop after loop, whatever was accepted before; no more tokens than a block has."""
    target, spec = case(name, tmp_path)
    law, kind = SAMPLINGS[sampling], drafter_kind(spec.name)
    text, starts, shown = list(PROMPT), [], []
    for loop in islice(loops(context(target, spec, law, k), spec, k), 24):
        drafted = loop.draft.tokens.tolist()
        if name.startswith("dflash"):
            assert len(drafted) == min(k, BLOCK - 1)
        count = min(len(loop.tokens), len(drafted))
        starts.append((len(text), count))
        assert loop.draft.probs is not None
        shown.append(loop.draft.probs[:count])
        text += loop.tokens
    again = kind.read_again(spec, target, torch.tensor(text), starts)
    assert again is not None
    for (begun, count), kept in zip(starts, shown, strict=True):
        place = begun - len(PROMPT)
        errors = (warp(again[place : place + count], law) - kept).abs().amax(-1)
        # Rounding may move a token across the edge of a nucleus, or exchange two best ones, in a rare row.
        assert not len(errors) or float(errors.median()) < 1e-3, begun


@pytest.mark.thorough_but("dspark-gated", "mtp-deepseek-v3:2", "assistant")
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_targets(name: str, tmp_path: Path) -> None:
    target, spec = case(name, tmp_path)
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:2]):
        alone = text_of(loops(context(target, spec, GREEDY, 3), None, 3, prompt), 24)
        assert text_of(loops(context(target, spec, GREEDY, 3), spec, 3, prompt), 24) == alone


def test_a_block_over_onnxruntime_drafts_what_it_drafts_over_torch(tmp_path: Path) -> None:
    spec = Spec("heads", (("from", str(save_block(tmp_path / "d", **TARGET))),))
    texts = []
    sizes = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None, "head_dim": 16}
    model = make(config_of("qwen3", **sizes))
    for target in (over_onnx(model), TorchLM(model)):
        drawn = islice(loops(context(target, spec, PLAIN, 4), spec, 4), 12)
        texts.append([loop.draft.tokens.tolist() for loop in drawn])
    assert texts[0] == texts[1]


def test_a_head_that_a_wrapper_does_not_declare_is_found(tmp_path: Path) -> None:
    """Nemotron-H's of images and sounds tells of no head, and its language model has one."""
    target = TorchLM(built(tiny_config("nemotron_h_omni"), torch.float32).eval())
    assert target.model.get_output_embeddings() is None
    width, layers = target.embedding_shape[1], target.layers
    sizes = {"hidden": width, "vocab_size": target.vocab_size, "target_layers": layers}
    spec = Spec("heads", (("from", str(save_block(tmp_path / "d", **sizes))),))
    given = context(target, spec, GREEDY, 3)
    assert text_of(loops(given, spec, 3), 12) == text_of(loops(given, None, 3), 12)


def test_a_token_drawn_before_changes_the_next_row(tmp_path: Path) -> None:
    """Of DSpark and DFlash2; not of DFlash, whose rows are all there before anything is drawn."""
    for name, changes in (("dspark-gated", True), ("dflash2", True), ("dflash", False)):
        target, spec = case(name, tmp_path)
        given = context(target, spec, PLAIN, 4)
        drafter: Any = build_drafter(spec, given)
        kept: Any = given.target
        kept.score(torch.tensor(PROMPT[:-1]), last=1)
        shown = []
        for first in (0.0, 0.999):
            drafter.begin(PROMPT)
            u = torch.tensor([first, 0.5, 0.5, 0.5], dtype=torch.float64)
            shown.append(drafter.draft(PROMPT, 4, u).probs)
        assert torch.equal(shown[0][0], shown[1][0])
        assert torch.equal(shown[0][1], shown[1][1]) is not changes


@pytest.mark.thorough_but("dspark-greedy")
@pytest.mark.parametrize(
    "sampling", [PLAIN, GREEDY, SamplingParams(top_p=0.8)], ids=["plain", "greedy", "nucleus"]
)
@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "dspark-rnn"])
def test_the_law_is_the_targets_exactly(kind: str, sampling: SamplingParams, tmp_path: Path) -> None:
    """By enumeration, in float64: below 1e-12."""
    for vocab_size, k in ((2, 3), (3, 2), (5, 1)):
        told = FOLDERS[kind] | {"drafted": 0, "writer": "speculators", "candidates": 2, "mask_token_id": 1}
        folder = tmp_path / f"{kind}{vocab_size}"
        saved = save_block(folder, **TARGET | {"vocab_size": vocab_size}, **told, block=4)
        drafter = str(Spec("heads", (("from", str(saved)),)))
        assert_lossless(drafter, vocab_size=vocab_size, ks=(k,), samplings=(sampling,))


@pytest.mark.parametrize("kind", ["dspark", "dflash2"])
def test_rows_that_were_not_drawn_from_are_found(kind: str, tmp_path: Path) -> None:
    """Where the first place's row is shown for every place, the law is another one."""
    told = FOLDERS[kind] | {"drafted": 0, "candidates": 2, "mask_token_id": 1}
    saved = save_block(tmp_path / kind, **TARGET | {"vocab_size": 3}, **told, block=4)
    usual = PathDrafter.draft

    def faulty(drafter: PathDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = usual(drafter, tokens, k, u)
        if draft.probs is None:  # after a single token
            return draft
        return Draft(draft.tokens, draft.probs[:1].expand(draft.count, -1))

    drafter = str(Spec("heads", (("from", str(saved)),)))
    with patch.object(PathDrafter, "draft", faulty), pytest.raises(AssertionError, match="emits"):
        assert_lossless(drafter, vocab_size=3, ks=(2,), samplings=(PLAIN,))


def test_a_mask_beyond_the_window_is_not_seen(tmp_path: Path) -> None:
    """A sliding layer counts its window from the block, or from each place: the drafts differ."""
    saved = save_block(tmp_path / "d", **TARGET, sliding=3)
    drafted = []
    for window in ("anchored", "each"):
        spec = Spec("heads", (("from", str(saved)), ("window", window)))
        many = islice(loops(context(TorchLM(qwen3()), spec, PLAIN, 4), spec, 4), 8)
        drafted.append(torch.cat([loop.draft.probs for loop in many if loop.draft.probs is not None][:1]))
    assert not torch.equal(drafted[0][1:], drafted[1][1:])


@pytest.mark.parametrize(
    ("told", "without", "says"),
    [
        ({"block_size": 0}, (), "block_size 0"),
        ({"block_size": 1}, (), "block_size 1"),
        ({"mask_token_id": None}, (), "no mask_token_id"),
        ({"aux_hidden_state_layer_ids": None}, (), "no aux_hidden_state_layer_ids"),
        ({}, ("fc.weight",), "fc.weight"),
        ({}, ("layers.1.mlp.up_proj.weight",), "layers.1.mlp.up_proj.weight"),
        ({"aux_hidden_state_layer_ids": [1, 2, 3]}, (), "fc.weight of the shape"),
        ({"draft_vocab_size": 12}, (), "d2t"),
    ],
)
def test_what_a_folder_lacks_is_named(
    told: dict[str, Any], without: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    folder = save_block(tmp_path / "d", **TARGET, without=without, **told)
    with pytest.raises(UnavailableError, match=says):
        read_draft(folder, FLAG)


def test_a_head_that_its_config_promises_is_missed_by_name(tmp_path: Path) -> None:
    missing = ("markov_head.markov_w2.weight",)
    folder = save_block(tmp_path / "d", **TARGET, kind="dspark", without=missing)
    with pytest.raises(UnavailableError, match=missing[0]):
        read_draft(folder, FLAG)


def test_ids_beyond_the_target_and_another_width_are_refused(tmp_path: Path) -> None:
    far = read_draft(save_block(tmp_path / "far", **TARGET, reads=(1, 9)), FLAG)
    with pytest.raises(UsageError, match="has 4 layers"):
        far.require_layers(LAYERS, FLAG)
    other = read_draft(save_block(tmp_path / "wide", **TARGET | {"hidden": 64}), FLAG)
    with pytest.raises(UsageError, match="width 64"):
        load_block(other, TorchLM(qwen3()), FLAG)


def test_defaults_follow_who_wrote_the_folder(tmp_path: Path) -> None:
    found = {}
    for name in ("dflash", "dspark", "dflash-authors", "dspark-rnn"):
        draft = read_draft(save_block(tmp_path / name, **TARGET, **FOLDERS[name]), FLAG)
        form = form_of(draft)
        found[name] = draft.states_of(LAYERS), form.drafts, draft.kind
    assert found == {
        "dflash": ((1, 2), BLOCK - 1, "dflash"),
        "dspark": ((1, 2), BLOCK, "dspark"),
        "dflash-authors": ((2, 3), BLOCK - 1, "dflash"),
        "dspark-rnn": ((2, 3), BLOCK, "dspark"),
    }


def test_modules_that_a_config_promises_and_the_files_lack_are_named(tmp_path: Path) -> None:
    folder = save_with_mtp("glm4-moe", tmp_path / "t", modules=0)
    config = loaded(folder).config
    config.num_nextn_predict_layers = 3
    with pytest.raises(NoModules, match="promises num_nextn_predict_layers 3"):
        find_modules(Checkpoint(folder), config)


def test_a_module_without_its_product_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_with_mtp("glm4-moe", tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.2.eh_proj.weight"
    save_file({key: part for key, part in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(NoModules, match=name):
        find_modules(Checkpoint(folder), loaded(folder).config)


def test_an_assistant_of_another_target_is_refused(tmp_path: Path) -> None:
    spec = Spec("assistant", (("from", str(save_assistant(tmp_path / "a", V, width=48))),))
    target = TorchLM(make_gemma4(V))
    with pytest.raises(SpsbenchError, match="backbone_hidden_size 48; the target has 32"):
        build_drafter(spec, context(target, spec, PLAIN, 3))


def test_modules_of_another_target_are_refused_by_their_folder(tmp_path: Path) -> None:
    """By width before anything is read of the target, and by the hash of its embedding once it is loaded."""
    saved = save_speculators_mtp(tmp_path / "m", qwen3().config, "tiny")
    spec = Spec("mtp", (("from", str(saved)),))
    other = make(config_of("qwen3", vocab_size=V + 1, bos_token_id=None, eos_token_id=None))
    asked: Any = SimpleNamespace(
        name="t", location="t", commit=None, config=other.config, is_encoder_decoder=False
    )
    with pytest.raises(UsageError, match=rf"--drafter: .*vocab_size {V}; this target has {V + 1}"):
        drafter_kind("mtp").require_target(spec, asked)
    told = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(told | {FINGERPRINT: "sha256:0"}))
    target = TorchLM(qwen3())
    with pytest.raises(UsageError, match="with the embedding sha256:0; this target has sha256:"):
        build_drafter(spec, context(target, spec, PLAIN, 3))


def test_a_module_reads_the_whole_prompt(tmp_path: Path) -> None:
    """A module whose keys and values begin with the draft has other rows."""
    target, spec = case("mtp-glm4-moe", tmp_path)
    given = context(target, spec, PLAIN, 2)
    drafter: Any = build_drafter(spec, given)
    kept: Any = given.target
    kept.score(torch.tensor(PROMPT[:-1]), last=1)
    u = torch.full((2,), 0.5, dtype=torch.float64)
    drafter.begin(PROMPT)
    whole = drafter.draft(PROMPT, 2, u).probs
    assert drafter.model._chain.length == len(PROMPT)
    drafter.model._chain.rollback(0)
    drafter.model._true = drafter.model._read = len(PROMPT) - 1
    module = drafter.model._chain
    logits, _ = module.extend(torch.tensor(PROMPT[-1:]), kept.features(6, 7))
    assert not torch.allclose(whole[:1], warp(logits, PLAIN), atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next"])
def test_a_module_of_a_hybrid_has_attention_alone(family: str, tmp_path: Path) -> None:
    """Its keys and values roll back as any; its norms multiply by one and their weight."""
    target = loaded(save_with_mtp(family, tmp_path / "t", vocab_size=V, bos_token_id=None, eos_token_id=None))
    layout = find_modules(Checkpoint(tmp_path / "t"), target.config)
    module = MtpModule(Checkpoint(tmp_path / "t"), layout.modules[0], 0, layout.hidden_first, target)
    states = torch.randn(12, 32, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor(PROMPT + PROMPT[:4])
    whole, apart = RewindCache(), RewindCache()
    expected = module.run(tokens, states, whole)
    module.run(tokens[:9], states[:9].flip(0), apart)
    apart.rollback(0)
    module.run(tokens[:7], states[:7], apart)
    found = module.run(tokens[7:], states[7:], apart)
    assert torch.allclose(found, expected[7:], atol=1e-5)
    gain = module.final_norm(expected) / torch.nn.functional.rms_norm(expected, (32,), eps=1e-6)
    assert torch.allclose(gain, 1 + module.final_norm.weight.expand_as(gain), atol=1e-3)

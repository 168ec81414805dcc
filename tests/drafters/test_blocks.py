"""Block drafters, MTP modules and assistants draw from the rows that they show, and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.remembered import DRAWN, LONG, prove, prove_drawn
from support.tiny_blocks import BLOCK, save_block
from support.tiny_models import config_of, make, over_onnx
from support.tiny_mtp import make_gemma4, save_assistant, save_speculators_mtp, save_with_mtp
from torch import Tensor

from benchmarks.tiny_types import tiny_config
from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop, start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import Draft, accept_draft
from spsbench.decode.sampling import UniformStream, warp
from spsbench.drafters.blocks import PathDrafter
from spsbench.drafters.heads import EagleDrafter
from spsbench.drafters.registry import Context, build_drafter, drafter_kind
from spsbench.law.enumeration import Scene, TableModel, random_rows, worst_difference
from spsbench.models.block_folders import form_of, load_block
from spsbench.models.causal_lm import LAST, CausalLM, States, built
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.mtp import MtpModule, NoModules, find_modules
from spsbench.models.reading import read_draft
from spsbench.models.recurrent import PLANES
from spsbench.models.rewind import RewindCache
from spsbench.models.speculators import FINGERPRINT
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import assert_lossless, scenes

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
def qwen3(vocab_size: int = V) -> Any:
    return make(config_of("qwen3", vocab_size=vocab_size, bos_token_id=None, eos_token_id=None))


def loaded(folder: Path) -> TorchLM:
    from transformers import AutoModelForCausalLM

    target = TorchLM(AutoModelForCausalLM.from_pretrained(folder).eval())
    target.files = folder
    return target


def case(name: str, folder: Path, vocab_size: int = V) -> tuple[TorchLM, Spec]:
    """A target and a drafter over it."""
    if name in FOLDERS:
        saved = save_block(folder / name, **TARGET, **FOLDERS[name])
        return TorchLM(qwen3()), Spec("heads", (("from", str(saved)),))
    if name == "assistant":
        saved = save_assistant(folder / name, vocab_size)
        return TorchLM(make_gemma4(vocab_size)), Spec("assistant", (("from", str(saved)),))
    if name == "mtp-apart":
        saved = save_speculators_mtp(folder / name, qwen3(vocab_size).config, "tiny")
        return TorchLM(qwen3(vocab_size)), Spec("mtp", (("from", str(saved)),))
    family, _, modules = name.removeprefix("mtp-").partition(":")
    sizes = {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": None}
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


APART = ["mtp-ernie4.5-moe", "mtp-longcat-flash"]
HYBRIDS = ["mtp-qwen3.5", "mtp-qwen3-next", "mtp-nemotron-h"]
NAMES = [*FOLDERS, "assistant", "mtp-apart", "mtp-glm4-moe", "mtp-deepseek-v3:2", *APART, *HYBRIDS]


@pytest.mark.thorough_but(
    "plain-4-dspark-rnn", "nucleus-3-dflash2", "plain-4-mtp-glm4-moe", "plain-4-dflash]"
)
@pytest.mark.soak_but(
    "pairs", "plain-4-dspark-rnn", "nucleus-3-dflash2", "plain-4-mtp-glm4-moe", "plain-4-dflash]"
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 3, 4, 7])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rows_are_those_of_an_uncached_forward(sampling: str, k: int, name: str, tmp_path: Path) -> None:
    """Loop after loop, whatever was accepted before; no more tokens than a block has."""
    target, spec = case(name, tmp_path)
    law, kind = SAMPLINGS[sampling], drafter_kind(spec.name)
    given = context(target, spec, law, k)
    text, starts, shown, rejected = list(PROMPT), [], [], False
    for loop in islice(loops(given, spec, k), 24):
        drafted = loop.draft.tokens.tolist()
        if name.startswith("dflash"):
            assert len(drafted) == min(k, BLOCK - 1)
        count = min(len(loop.tokens), len(drafted))
        rejected |= loop.accepted < len(drafted)
        starts.append((len(text), count))
        assert loop.draft.probs is not None
        shown.append(loop.draft.probs[:count])
        text += loop.tokens
    if name in HYBRIDS:
        assert rejected
        assert isinstance(given.target, CausalLM)
        assert given.target.rolled_back_by == PLANES
    again = kind.read_again(spec, target, torch.tensor(text), starts)
    assert again is not None
    for (begun, count), kept in zip(starts, shown, strict=True):
        place = begun - len(PROMPT)
        errors = (warp(again[place : place + count], law) - kept).abs().amax(-1)
        # Rounding may move a token across the edge of a nucleus, or exchange two best ones, in a rare row.
        assert not len(errors) or float(errors.median()) < 1e-3, begun


@pytest.mark.thorough_but("dspark-gated", "mtp-deepseek-v3:2", "mtp-qwen3.5", "assistant")
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


# V and K. Of drawn drafts of more tokens see ``LONG``.
COUNTED = ((5, 1), (3, 2), (2, 3))


SMALL = ["dflash", "dflash2", "dspark", "dspark-gated", "dspark-rnn"]


def small_block(kind: str, folder: Path, vocab_size: int) -> str:
    """A block drafter of up to seven tokens over the small model behind the tables that are enumerated."""
    told = FOLDERS[kind] | {"drafted": 0, "writer": "speculators", "candidates": 2, "mask_token_id": 1}
    saved = save_block(folder / f"{kind}{vocab_size}", **TARGET | {"vocab_size": vocab_size}, **told, block=8)
    return str(Spec("heads", (("from", str(saved)),)))


@pytest.mark.thorough_but("dspark-greedy")
@pytest.mark.parametrize(
    "sampling", [PLAIN, GREEDY, SamplingParams(top_p=0.8)], ids=["plain", "greedy", "nucleus"]
)
@pytest.mark.parametrize("kind", SMALL)
def test_the_law_is_the_targets_exactly(kind: str, sampling: SamplingParams, tmp_path: Path) -> None:
    """By enumeration, in float64: below 1e-12."""
    for vocab_size, k in COUNTED:
        drafter = small_block(kind, tmp_path, vocab_size)
        assert_lossless(drafter, vocab_size=vocab_size, ks=(k,), samplings=(sampling,))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SMALL)
def test_the_greedy_law_is_exact_up_to_seven_tokens(kind: str, tmp_path: Path) -> None:
    drafter = small_block(kind, tmp_path, 3)
    for k in (4, 5, 6, 7):
        prove(scenes(drafter, accept_draft, 3, (k,), (GREEDY,)), k)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize(("k", "law"), LONG)
def test_the_drawn_law_is_exact_up_to_seven_tokens(k: int, law: str, kind: str, tmp_path: Path) -> None:
    drafter = small_block(kind, tmp_path, 2)
    prove_drawn(scenes(drafter, accept_draft, 2, (k,), (DRAWN[law],)), k)


class TableOver(TableModel):
    """A table of random rows with the states and the cache of a made target behind the same tokens."""

    def __init__(self, vocab_size: int, kept: TorchLM) -> None:
        super().__init__(random_rows(vocab_size, seed=1, sharpness=1.5), vocab_size)
        self._kept = kept
        self._read = list[int]()

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        """See ``HiddenStates.features``."""
        if self._read != self._fed:
            self._read = list(self._fed)
            self._kept.score(self._kept.begin(self._fed), last=1)
        return self._kept.features(start, end, states)


def scenes_over(target: TorchLM, spec: Spec, k: int, sampling: SamplingParams) -> Iterator[Scene]:
    """The situations of ``assert_lossless`` for a drafter that needs a made target, in float64."""
    kept = target.with_features(FLAG, drafter_kind(spec.name).states_of(spec, target.layers))
    for scene in scenes("model", accept_draft, target.vocab_size, (k,), (sampling,)):
        table = TableOver(target.vocab_size, kept)
        given = Context(kept, None, sampling, CPU, target.vocab_size, hidden=table, k=k)
        # One drafter for all loops, since it takes long to build; ``begin`` forgets the last sequence.
        yield replace(scene, target=table, make=cache(partial(build_drafter, spec, given)))


def case_in_float64(name: str, folder: Path, vocab_size: int) -> tuple[TorchLM, Spec]:
    target, spec = case(name, folder, vocab_size)
    target.model.set_experts_implementation("eager")  # grouped products are of float32 at most
    wide = TorchLM(target.model.double())
    wide.files = target.files
    return wide, spec


OVER_TARGETS = ["assistant", "mtp-apart", "mtp-glm4-moe", "mtp-deepseek-v3:2", "mtp-mellum"]
OVER_TARGETS += APART + HYBRIDS
LAWS = {"plain": PLAIN, "greedy": GREEDY, "nucleus": SamplingParams(top_p=0.8)}
SIZES = [(law, *size) for law in LAWS for size in COUNTED] + [("greedy", 3, k) for k in range(4, 8)]


@pytest.mark.thorough_but("nucleus-5-1-mtp-apart", "greedy-3-2-assistant", "greedy-5-1-mtp-qwen3.5")
@pytest.mark.parametrize("name", OVER_TARGETS)
@pytest.mark.parametrize(("sampling", "vocab_size", "k"), SIZES)
def test_the_law_over_a_made_target_is_exact(
    sampling: str, vocab_size: int, k: int, name: str, tmp_path: Path
) -> None:
    """Of modules and assistants, whose target is no table. Small scenes ask their models anew."""
    target, spec = case_in_float64(name, tmp_path, vocab_size)
    prove(scenes_over(target, spec, k, LAWS[sampling]), k, again=(vocab_size, k) in ((5, 1), (3, 2)))


@pytest.mark.parametrize("name", OVER_TARGETS)
@pytest.mark.parametrize(("k", "law"), LONG)
def test_the_drawn_law_over_a_made_target_is_exact(k: int, law: str, name: str, tmp_path: Path) -> None:
    target, spec = case_in_float64(name, tmp_path, 2)
    prove_drawn(scenes_over(target, spec, k, DRAWN[law]), k)


@pytest.mark.parametrize("name", ["assistant", "mtp-glm4-moe"])
def test_flatter_rows_of_a_made_target_are_found(name: str, tmp_path: Path) -> None:
    usual = EagleDrafter.draft

    def faulty(drafter: EagleDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = usual(drafter, tokens, k, u)
        if draft.probs is None:
            return draft
        flat = draft.probs.sqrt()
        return Draft(draft.tokens, flat / flat.sum(-1, keepdim=True))

    target, spec = case_in_float64(name, tmp_path, 2)
    with patch.object(EagleDrafter, "draft", faulty):
        assert any(worst_difference(scene).size > 1e-3 for scene in scenes_over(target, spec, 1, PLAIN))


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
    name = "model.layers.2.eh_proj.weight"
    folder = renamed(save_with_mtp("glm4-moe", tmp_path / "t"), lambda key: "" if key == name else key)
    with pytest.raises(NoModules, match=name):
        find_modules(Checkpoint(folder), loaded(folder).config)


def renamed(folder: Path, change: Callable[[str], str]) -> Path:
    """The folder with other names of tensors; what is named nothing is left out."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {change(name): part for name, part in tensors.items() if change(name)}, folder / "model.safetensors"
    )
    return folder


def test_a_module_of_several_layers_is_one_module(tmp_path: Path) -> None:
    """Nemotron-H's: attention, then experts; two modules of two layers are two."""
    folder = save_with_mtp("nemotron-h", tmp_path / "t", modules=1)
    config = loaded(folder).config
    (module,) = find_modules(Checkpoint(folder), config).modules
    assert (module.layers, module.embedding_norm) == (2, "mtp.layers.0.enorm.weight")
    assert module.final_norm == "mtp.layers.1.final_layernorm.weight"
    assert {name.split(".")[2] for name in module.layer} == {"0", "1"}
    told = TorchLM(make(config))
    config.mtp_layers_block_type = ["full_attention", "mlp", "moe"]
    with pytest.raises(NoModules, match="layers full_attention, mlp, moe, its files hold 2"):
        MtpModule(Checkpoint(folder), module, 0, False, told)


def test_modules_whose_names_are_not_known_are_not_said_to_be_missing(tmp_path: Path) -> None:
    folder = save_with_mtp("nemotron-h", tmp_path / "t")
    config = loaded(folder).config
    renamed(folder, lambda name: name.replace("mtp.layers.", "model.mtp_stack."))
    with pytest.raises(
        NoModules, match=r"in a way that is not read here, as in model\.mtp_stack\.0\.eh_proj\.weight"
    ):
        find_modules(Checkpoint(folder), config)


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

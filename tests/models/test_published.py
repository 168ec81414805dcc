"""Folders of others are read by what is in them; what is missing, spare or contradictory is named."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.published_heads import (
    READS,
    Weights,
    as_authors,
    changed,
    save_medusa,
    save_published,
    some,
    write,
)
from support.tiny_models import config_of, make, over_onnx
from torch import Tensor

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.models.heads import PEagleChain, load_chain, load_heads
from spsbench.models.reading import read_draft
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft

FLAG = "--drafter"
HIDDEN, SIZE, LAYERS = 32, 258, 3
IDS = (1, 2, 3)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    return make(config_of("llama", head_dim=16, num_hidden_layers=LAYERS))


def rows_of(draft: TrainedDraft, target: Any) -> Tensor:
    """[2, V] logits behind eight entries of the target's states, and behind one of the head's own."""
    tokens = (torch.arange(10) * 7) % 250
    keeping = target.with_features(FLAG, draft.states_of(LAYERS))
    keeping.score(tokens, last=1)
    chain = load_chain(draft, target, 0, FLAG)
    first, own = chain.extend(tokens[1:9], chain.combined(keeping.features(0, 8, chain.reads)))
    first = first.clone()
    return torch.cat([first, chain.extend(tokens[9:], own.clone())[0]])


@pytest.mark.thorough
def test_reading_a_folder_before_any_model_says_nothing(tmp_path: Path) -> None:
    """transformers imports torchao where it is installed, which logs what it cannot use on this machine."""
    folder = save_published(tmp_path / "head", HIDDEN, SIZE)
    program = (
        "import pathlib, sys, spsbench.models.reading as reading;"
        "reading.read_draft(pathlib.Path(sys.argv[1]), '--drafter');"
        "import spsbench.models.torch_lm"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_authors_layout_is_the_same_head(tmp_path: Path, model: Any) -> None:
    """Of safetensors or of a pickle, over either backend; another layer's weights are another head."""
    ours = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS, vocabulary=some(SIZE))
    folders = [ours]
    folders.append(as_authors(ours, tmp_path / "b", **{READS: list(IDS)}))
    folders.append(as_authors(ours, tmp_path / "c", pickled=True, eagle_config={READS: list(IDS)}))
    found = [read_draft(folder, FLAG) for folder in folders]
    assert [draft.writer for draft in found] == ["speculators", "authors", "authors"]
    for target in (TorchLM(model), over_onnx(model)):
        expected, *others = (rows_of(draft, target) for draft in found)
        for rows in others:
            assert torch.equal(rows, expected)
        assert int(expected[0].isfinite().sum()) == len(some(SIZE))
    other = changed(ours, lambda held: held | {"layers.0.hidden_norm.weight": torch.ones(HIDDEN)})
    assert not torch.allclose(rows_of(read_draft(other, FLAG), TorchLM(model)), others[0], atol=1e-3)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_rows_ahead_are_those_of_a_chain_over_masks(tmp_path: Path, model: Any, backend: str) -> None:
    folder = save_published(tmp_path / "p", HIDDEN, SIZE, "peagle", ids=IDS, layers=2, norm_before_fc=True)
    draft = read_draft(folder, FLAG)
    target: Any = over_onnx(model) if backend == "onnx" else TorchLM(model)
    tokens = (torch.arange(10) * 7) % 250
    keeping = target.with_features(FLAG, draft.states_of(LAYERS))
    keeping.score(tokens, last=1)
    chain, slow = (load_chain(draft, target, 0, FLAG) for _ in range(2))
    assert isinstance(chain, PEagleChain)
    states = chain.combined(keeping.features(0, 9, chain.reads))
    rows = chain.ahead(tokens[1:], states, 4).clone()
    assert chain.length == 9
    expected = [slow.extend(tokens[1:], states)[0].clone()]
    masked = slow.combined(torch.from_numpy(draft.stored.read("mask_hidden").copy()).view(1, -1))
    for _ in range(3):
        expected.append(slow.extend(torch.tensor([1]), masked)[0].clone())
    torch.testing.assert_close(rows, torch.cat(expected), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(rows[0], rows[1], atol=1e-3)


@pytest.mark.parametrize("blocks", [1, 2])
def test_medusa_heads_of_its_authors_have_output_heads_of_their_own(
    tmp_path: Path, model: Any, blocks: int
) -> None:
    folder = save_medusa(tmp_path / "m", HIDDEN, SIZE, blocks=blocks)
    held, feature = torch.load(folder / "medusa_lm_head.pt"), torch.randn(1, HIDDEN)
    for target in (TorchLM(model), over_onnx(model)):
        heads = load_heads(read_draft(folder, FLAG), target, 0, FLAG)
        rows = heads(feature, 2)
        assert rows.shape == (2, SIZE)
        for head in range(2):
            state = feature
            for block in range(blocks):
                name = f"{head}.{block}.linear"
                added = torch.nn.functional.linear(state, held[f"{name}.weight"], held[f"{name}.bias"])
                state = state + torch.nn.functional.silu(added)
            torch.testing.assert_close(rows[head], (state @ held[f"{head}.{blocks}.weight"].T)[0])


def test_which_states_are_read_follows_from_ids_and_their_reading(tmp_path: Path, model: Any) -> None:
    draft = read_draft(save_published(tmp_path / "a", HIDDEN, SIZE, ids=(0, 1, 2)), FLAG)
    assert draft.states_of(LAYERS) == (0, 1, 2)
    outputs = draft.read_as(FLAG, ids="output")
    assert outputs.states_of(LAYERS) == (1, 2, 3)
    assert not torch.allclose(rows_of(outputs, TorchLM(model)), rows_of(draft, TorchLM(model)), atol=1e-3)
    default = read_draft(save_published(tmp_path / "b", HIDDEN, SIZE, ids=None), FLAG)
    assert default.states_of(32) == (2, 16, 29)
    default.require_layers(32, FLAG)
    with pytest.raises(UsageError, match="the states 2, 2, 1 of any target by default; this target has 4"):
        default.require_layers(4, FLAG)
    with pytest.raises(UsageError, match=r"by its ids \[0, 1, 2\]; this target has 2 layers.*ids=after"):
        outputs.require_layers(2, FLAG)


def test_what_is_not_settled_is_said(tmp_path: Path) -> None:
    ours = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS)
    certain = {each.name: each.certain for each in read_draft(ours, FLAG).conventions}
    assert certain == {"ids": True, "residual": True, "recycle": True}
    nested = as_authors(ours, tmp_path / "b", eagle_config={READS: list(IDS)})
    assert {each.name: each.certain for each in read_draft(nested, FLAG).conventions}["ids"] is False
    changed(ours, norm_before_residual=None)
    (residual,) = (each for each in read_draft(ours, FLAG).conventions if each.name == "residual")
    assert (residual.value, residual.certain) == ("pre", False)


def test_readings_that_a_kind_has_not_are_refused(tmp_path: Path) -> None:
    medusa = read_draft(save_medusa(tmp_path / "m", HIDDEN, SIZE), FLAG)
    with pytest.raises(UsageError, match=r"--drafter: .*of the kind medusa, which has no choice of ids"):
        medusa.read_as(FLAG, ids="output")
    head = read_draft(save_published(tmp_path / "a", HIDDEN, SIZE), FLAG)
    with pytest.raises(UsageError, match=r"ids=before is not valid\. Give ids=after or ids=output"):
        head.read_as(FLAG, ids="before")


def moved(by: int, to: int = 1) -> Callable[[Weights], Weights]:
    def change(held: Weights) -> Weights:
        d2t = held["d2t"].clone()
        d2t[by] += to
        return held | {"d2t": d2t}

    return change


def test_a_map_of_token_ids_is_read_as_its_mask_says(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, vocabulary=some(SIZE))
    offsets = read_draft(folder, FLAG)
    changed(folder, lambda held: held | {"d2t": some(SIZE)})
    ids = read_draft(folder, FLAG)
    assert (offsets.extra["d2t"], ids.extra["d2t"]) == ("offsets", "token ids")
    assert offsets.vocabulary is not None
    assert ids.vocabulary is not None
    assert np.array_equal(offsets.vocabulary, ids.vocabulary)


def test_rows_in_any_order_are_spread_to_their_tokens(tmp_path: Path, model: Any) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS, vocabulary=some(SIZE))
    expected = rows_of(read_draft(folder, FLAG), TorchLM(model))
    order = torch.randperm(len(some(SIZE)))
    changed(
        folder,
        lambda held: (
            held
            | {
                "d2t": some(SIZE)[order] - torch.arange(len(order)),
                "lm_head.weight": held["lm_head.weight"][order],
            }
        ),
    )
    torch.testing.assert_close(rows_of(read_draft(folder, FLAG), TorchLM(model)), expected)


def without(*names: str) -> Callable[[Weights], Weights]:
    return lambda held: {name: part for name, part in held.items() if name not in names}


WEIGHTS: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "missing": (without("layers.0.hidden_norm.weight"), "has no layers.0.hidden_norm.weight"),
    "spare": (lambda held: held | {"markov_head.w": torch.zeros(2)}, "has markov_head.w, which no config"),
    "shape": (
        lambda held: held | {"fc.weight": torch.zeros(HIDDEN, HIDDEN)},
        r"fc.weight of the shape \[32, 32\]",
    ),
    "type": (lambda held: held | {"fc.weight": held["fc.weight"].double()}, "fc.weight in a type"),
    "no layer": (without(), "has 1 layers of the 2"),
    "no map": (without("d2t"), "drafts 129 of 258 tokens and has no d2t"),
    "twice": (moved(3, -2), "contradicts its t2d"),
    "outside": (moved(128, 999), "contradicts its t2d"),
    "twice, no mask": (lambda held: without("t2d")(moved(3, -2)(held)), "is not one to one"),
    "ids, no mask": (lambda held: without("t2d")(held) | {"d2t": some(SIZE)}, "look like token ids"),
    "mask of another size": (lambda held: held | {"t2d": held["t2d"][:-1]}, "t2d of 257 tokens, not 258"),
    "a map of floats": (lambda held: held | {"d2t": held["d2t"].float()}, "d2t has the type float32"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, case: str) -> None:
    change, said = WEIGHTS[case]
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, vocabulary=some(SIZE))
    read_draft(folder, FLAG)
    if case == "no layer":
        config = json.loads((folder / "config.json").read_text())
        layer = config["transformer_layer_config"] | {"num_hidden_layers": 2}
        changed(folder, transformer_layer_config=layer)
    else:
        changed(folder, change)
    with pytest.raises(SpsbenchError, match=rf"--drafter: .*{said}") as refused:
        read_draft(folder, FLAG)
    assert refused.value.exit_code in (2, 3)


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "norms that the file lacks": ({"fc_norm": True}, "has no fc_norm.0.weight, fc_norm.1.weight"),
    "both norms": ({"fc_norm": True, "norm_before_fc": True}, "both norm_before_fc and fc_norm"),
    "ids that are none": ({READS: "2"}, f"{READS} 2"),
    "negative ids": ({READS: [-1, 2, 3]}, READS),
    "an id twice": ({READS: [1, 1, 2]}, READS),
    "an unknown kind": ({"speculators_model_type": "tree"}, "speculators_model_type tree"),
    "no layer": ({"transformer_layer_config": None}, "no transformer_layer_config"),
    "a layer of others": (
        {"transformer_layer_config": {"model_type": "gpt_oss", "hidden_size": 32, "vocab_size": 258}},
        "gpt_oss",
    ),
    "no width": ({"transformer_layer_config": {"model_type": "llama"}}, "no hidden_size"),
    "a width of text": (
        {"transformer_layer_config": {"model_type": "llama", "hidden_size": "x"}},
        "hidden_size x",
    ),
    "no verifier": ({"speculators_config": {}}, "names no verifier"),
    "a layer of nonsense": (
        {
            "transformer_layer_config": {
                "model_type": "llama",
                "hidden_size": 32,
                "vocab_size": 258,
                "num_hidden_layers": 1,
                "hidden_act": "none",
            }
        },
        "from which no layer can be built",
    ),
    "absurd": (
        {"transformer_layer_config": {"num_hidden_layers": 10**9}},
        "num_hidden_layers is 1,000,000,000",
    ),
}


@pytest.mark.parametrize("case", FIELDS)
def test_configurations_that_do_not_fit_are_named(tmp_path: Path, case: str) -> None:
    told, said = FIELDS[case]
    folder = changed(save_published(tmp_path / "a", HIDDEN, SIZE), **told)
    with pytest.raises(SpsbenchError, match=rf"--drafter: .*{said}") as refused:
        read_draft(folder, FLAG)
    assert refused.value.exit_code in (2, 3)


def test_a_mask_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "p", HIDDEN, SIZE, "peagle", mask_token_id=SIZE)
    with pytest.raises(UnavailableError, match=f"mask_token_id {SIZE} of {SIZE} tokens"):
        read_draft(folder, FLAG)


def test_a_refiner_is_described_and_says_why_it_does_not_run(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "x", HIDDEN, SIZE, block_size=8, num_jacobi_passes=6)
    draft = read_draft(changed(folder, speculators_model_type="xpress"), FLAG)
    assert (draft.kind, draft.target.name, draft.extra["num_jacobi_passes"]) == ("xpress", "tiny", 6)
    assert "argmax" in draft.refused


class Harmless:
    """What a pickle may say besides tensors; it would count where it was run."""

    ran = 0

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _run, ()


def _run() -> None:
    Harmless.ran += 1


@pytest.mark.parametrize("case", ["a call", "a number", "a list", "not an archive", "views of nothing"])
def test_a_pickle_of_anything_but_tensors_is_not_run(tmp_path: Path, case: str) -> None:
    folder = save_medusa(tmp_path / "m", HIDDEN, SIZE)
    file = folder / "medusa_lm_head.pt"
    held = torch.load(file)
    if case == "not an archive":
        file.write_bytes(pickle.dumps(held["0.0.linear.bias"].tolist()))
    else:
        huge = torch.zeros(1).expand(1 << 40)
        more = {"a call": {"x": Harmless()}, "a number": {"x": 3}, "views of nothing": {"x": huge}}
        torch.save(list(held.values()) if case == "a list" else held | more[case], file)
    with pytest.raises(
        UsageError, match=r"--drafter: .*medusa_lm_head\.pt (holds|is not a zip archive).*safetensors"
    ):
        read_draft(folder, FLAG)
    assert not Harmless.ran


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE)
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = dict.fromkeys(held, "model-00001-of-00002.safetensors") | {
        "fc.weight": "model-00002-of-00002.safetensors"
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(
        UnavailableError, match=r"has no model-00002-of-00002\.safetensors, which its model\.saf"
    ):
        read_draft(folder, FLAG)
    save_file({}, folder / "model-00002-of-00002.safetensors")
    read_draft(folder, FLAG)


def test_several_pickles_are_refused_by_their_index(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(UsageError, match=r"several pickles \(pytorch_model\.bin\.index\.json\)"):
        read_draft(folder, FLAG)


def test_a_head_of_the_first_eagle_is_named(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE)
    held = load_file(folder / "model.safetensors")
    layer = {name: part for name, part in held.items() if "layers.0" in name and "hidden_norm" not in name}
    config = {"model_type": "llama", "hidden_size": HIDDEN, "vocab_size": SIZE, "num_hidden_layers": 1}
    folder = tmp_path / "first"
    folder.mkdir()
    write(folder, config, layer | {"fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN)})
    with pytest.raises(UsageError, match=r"EAGLE's first layout.*distill --kind eagle"):
        read_draft(folder, FLAG)


def test_a_folder_that_is_none_says_what_was_looked_for(tmp_path: Path) -> None:
    for config, said in ((None, "it has no draft.json"), ({}, "match no known format")):
        folder = tmp_path / said[:3]
        folder.mkdir()
        if config is not None:
            write(folder, config, {"w": torch.zeros(1)})
        with pytest.raises(UnavailableError, match=f"is not a trained draft: .*{said}"):
            read_draft(folder, FLAG)
    for content, said in (("{", "is damaged"), ("[]", "no object")):
        (folder / "config.json").write_text(content)
        with pytest.raises(UnavailableError, match=said):
            read_draft(folder, FLAG)

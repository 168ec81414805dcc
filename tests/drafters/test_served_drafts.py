"""How engines read folders of others, and what a target accepts under each reading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.published_heads import READS, as_authors, changed, save_medusa, save_published
from support.tiny_blocks import save_block
from support.tiny_models import config_of, make
from support.tiny_mtp import save_assistant, save_with_mtp
from transformers import Gemma4AssistantForCausalLM

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Spec
from spsbench.drafters.read_otherwise import by_reading
from spsbench.drafters.registry import drafter_kind
from spsbench.drafters.served_drafts import LLAMA_CPP, SGLANG, TRANSFORMERS, VLLM, Served, readings, served
from spsbench.models import source
from spsbench.models.assistant import describe_assistant
from spsbench.models.module_folders import describe_modules
from spsbench.models.published import open_published
from spsbench.models.reading import read_draft
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft

FLAG = "--drafter"
HIDDEN, SIZE = 32, 258
IDS = [1, 2, 3]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def of_engines(folder: Path) -> dict[str, Served]:
    draft = read_draft(folder, FLAG)
    config = json.loads((folder / "config.json").read_text())
    return {each.engine: each for each in served(draft, config)}


@pytest.mark.parametrize(
    ("told", "loads"),
    [
        ({}, False),
        ({"model_type": "qwen3"}, True),
        ({"num_aux_hidden_states": 5}, True),
        ({"eagle_config": None}, False),
        ({"eagle_config": {"use_aux_hidden_state": False}}, True),
        ({"ids": IDS}, True),
        ({"kind": "peagle"}, False),
        ({"kind": "peagle", "ids": IDS}, True),
    ],
)
def test_vllm_builds_a_head_of_llama_for_three_states_unless_told(
    told: dict[str, Any], loads: bool, tmp_path: Path
) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, **{"ids": [0, 1, 2, 3, 4], **told})
    of_vllm = of_engines(folder)[VLLM]
    assert of_vllm.loads is loads
    assert loads or "sized for 3 states" in str(of_vllm.says)


def test_vllm_passes_no_norm_of_states_on_to_a_head_that_drafts_in_parallel(tmp_path: Path) -> None:
    for kind, loads in (("eagle3", True), ("peagle", False)):
        folder = save_published(tmp_path / kind, HIDDEN, SIZE, kind, ids=IDS, fc_norm=True)
        assert of_engines(folder)[VLLM].loads is loads


def test_ids_are_read_where_an_engine_looks_for_them(tmp_path: Path) -> None:
    ours = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS)
    at_top = of_engines(ours)
    assert at_top[VLLM].options is None
    assert "ids outside of eagle_config are not read" in str(at_top[SGLANG].says)
    nested = of_engines(as_authors(ours, tmp_path / "b", eagle_config={READS: IDS}))
    assert nested[SGLANG].options == {"ids": "output"}
    for engine in (VLLM, LLAMA_CPP):
        assert "ids inside eagle_config are not read" in str(nested[engine].says)
    default = of_engines(as_authors(ours, tmp_path / "c"))
    assert {str(each.says) for each in default.values() if each.loads} == {"as its writer does"}
    assert not default[TRANSFORMERS].loads


def test_flags_that_a_release_does_not_know_are_named(tmp_path: Path) -> None:
    told: dict[str, Any] = {"fc_norm": True, "norm_output": True, "norm_before_residual": True}
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS, layers=2, **told)
    found = of_engines(folder)
    assert str(found[VLLM].says) == "as its writer does"
    assert "norm_before_residual is not read; layers from 1 on" in str(found[SGLANG].says)
    assert str(found[LLAMA_CPP].says) == "norm_output is not read; fc_norm is not read"
    assert found[LLAMA_CPP].options is None  # without fc_norm it is no reading of ours
    plain = changed(save_published(tmp_path / "b", HIDDEN, SIZE, ids=IDS), norm_before_residual=None)
    assert of_engines(plain)[VLLM].options == {"residual": "post"}


def test_each_reading_is_measured_once_and_none_beyond_the_target(tmp_path: Path) -> None:
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS)
    draft = read_draft(folder, FLAG)
    both = [
        Served(VLLM, True, "", {"residual": "post"}),
        Served(SGLANG, True, "", {"ids": "output", "residual": "post"}),
    ]
    expected = [
        {},
        {"ids": "output"},
        {"residual": "post"},
        {"recycle": "post"},
        {"ids": "output", "residual": "post"},
    ]
    assert readings(draft, both, 4) == expected
    assert readings(draft, both, 3) == [each for each in expected if "ids" not in each]
    assert readings(read_draft(save_medusa(tmp_path / "m", HIDDEN, SIZE), FLAG), [], 4) == [{}]


def test_acceptance_is_that_of_the_reading_alone(tmp_path: Path) -> None:
    """The same reading twice gives the same numbers, another one others; a chance is one."""
    target = TorchLM(make(config_of("llama", head_dim=16)))
    folder = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS)
    spec = Spec("heads", (("from", str(folder)),))
    asked = [{}, {"ids": "output"}, {"ids": "after"}]
    found = by_reading(target, spec, asked, [[7, 3, 11], [9, 2, 200, 4]], k=3, tokens=8)
    assert found[0].by_place == found[2].by_place
    assert found[0].lengths == found[2].lengths
    assert found[0].lengths != found[1].lengths
    for reading in found:
        assert len(reading.by_place) == 3
        assert len(reading.lengths) == 2
        assert all(0 <= chance <= 1 for chance in reading.by_place)
        assert all(1 <= length <= 4 for length in reading.lengths)
        first = np.mean(reading.lengths) - 1
        assert reading.by_place[0] <= first + 1e-9


def test_what_is_not_certain_is_part_of_the_name(tmp_path: Path) -> None:
    ours = save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS)
    nested = as_authors(ours, tmp_path / "b", eagle_config={READS: IDS})
    kind = drafter_kind("heads")
    certain, open_ = (Spec("heads", (("from", str(folder)),)) for folder in (ours, nested))
    assert kind.spelled(certain) == certain
    assert dict(kind.spelled(open_).options)["ids"] == "after"
    asked = Spec("heads", (*open_.options, ("ids", "output")))
    assert dict(kind.spelled(asked).options)["ids"] == "output"


def of_modules(folder: Path) -> tuple[TrainedDraft, dict[str, Served]]:
    published = open_published(folder, FLAG)
    assert published is not None
    draft = describe_modules(published)
    assert draft is not None
    return draft, {each.engine: each for each in served(draft, published.config)}


def test_modules_of_a_target_are_described_from_its_files(tmp_path: Path) -> None:
    draft, engines = of_modules(save_with_mtp("glm4-moe", tmp_path / "glm", modules=2))
    assert (draft.kind, draft.extra["modules"], draft.target.vocab_size) == ("mtp", 2, SIZE)
    assert engines[VLLM].options == {"recycle": "pre"}
    assert "before its norm" in str(engines[VLLM].says)
    assert str(engines[SGLANG].says) == "as its writer does"
    assert str(engines[TRANSFORMERS].says) == "as many tokens as modules"
    _, others = of_modules(save_with_mtp("qwen3-next", tmp_path / "qwen"))
    assert others[VLLM].options is None
    assert not others[TRANSFORMERS].loads


def test_modules_that_engines_read_by_code_of_their_own(tmp_path: Path) -> None:
    draft, ernie = of_modules(save_with_mtp("ernie4.5-moe", tmp_path / "ernie"))
    assert draft.extra == {"modules": 1, "own_heads": 0, "apart": False}
    assert "rotates halves" in str(ernie[VLLM].says)
    assert "without the target's final norm" in str(ernie[SGLANG].says)
    assert ernie[VLLM].options is ernie[SGLANG].options is None
    assert not ernie[LLAMA_CPP].loads
    draft, longcat = of_modules(save_with_mtp("longcat-flash", tmp_path / "longcat"))
    assert (draft.kind, draft.target.name) == ("mtp", "longcat_flash")
    assert str(longcat[VLLM].says) == str(longcat[SGLANG].says) == "as its writer does"
    assert not longcat[LLAMA_CPP].loads
    _, nemotron = of_modules(save_with_mtp("nemotron-h", tmp_path / "nemotron"))
    assert str(nemotron[VLLM].says) == "as its writer does"
    assert "subtracts the mean" in str(nemotron[LLAMA_CPP].says)
    assert not any(engines[TRANSFORMERS].loads for engines in (ernie, longcat, nemotron))


def test_a_target_without_modules_is_none_and_one_that_promises_them_is_named(tmp_path: Path) -> None:
    folder = save_with_mtp("glm4-moe", tmp_path / "t", modules=0)
    published = open_published(folder, FLAG)
    assert published is not None
    assert (
        describe_modules(replace(published, config={**published.config, "num_nextn_predict_layers": 0}))
        is None
    )
    promising = {**published.config, "num_nextn_predict_layers": 3}
    with pytest.raises(UnavailableError, match="promises num_nextn_predict_layers 3, and its files have no"):
        describe_modules(replace(published, config=promising))


def test_a_folder_that_says_less_of_its_target_is_not_taken_for_modules(tmp_path: Path) -> None:
    """A Medusa file's configuration may name a model type and no width: its own reader describes it."""
    folder = save_with_mtp("glm4-moe", tmp_path / "t")
    published = open_published(folder, FLAG)
    assert published is not None
    less = {name: value for name, value in published.config.items() if name != "hidden_size"}
    assert describe_modules(replace(published, config=less)) is None


BLOCK_TARGET: dict[str, Any] = {"hidden": HIDDEN, "vocab_size": SIZE, "target_layers": 4}


def test_a_block_is_read_by_engines_as_their_code_says(tmp_path: Path) -> None:
    told = {"sample_from_anchor": False, "sliding_window_non_causal": True}
    plain = of_engines(save_block(tmp_path / "plain", **BLOCK_TARGET, **told))
    assert str(plain[VLLM].says) == "a draft of K tokens is a block of as many masks, not of block_size"
    assert plain[LLAMA_CPP].loads
    assert not plain[SGLANG].loads
    assert "target_layer_ids" in str(plain[SGLANG].says)
    causal = of_engines(
        save_block(tmp_path / "causal", **BLOCK_TARGET, **told | {"sliding_window_non_causal": False})
    )
    assert "makes every layer causal" in str(causal[VLLM].says)
    authors = of_engines(save_block(tmp_path / "z", **BLOCK_TARGET, writer="z-lab"))
    assert str(authors[SGLANG].says) == "as its writer does"
    assert not of_engines(save_block(tmp_path / "two", **BLOCK_TARGET, kind="dflash2"))[LLAMA_CPP].loads


def test_a_dspark_whose_anchor_is_not_told_is_read_both_ways(tmp_path: Path) -> None:
    """Its writer lets the pending token's place predict, vLLM does not: what that costs is measured."""
    folder = save_block(tmp_path / "d", **BLOCK_TARGET, kind="dspark")
    config = json.loads((folder / "config.json").read_text())
    config.pop("sample_from_anchor", None)
    (folder / "config.json").write_text(json.dumps(config))
    assert of_engines(folder)[VLLM].options == {"anchor": "own"}
    gated = of_engines(save_block(tmp_path / "g", **BLOCK_TARGET, kind="dspark", markov="gated"))
    assert [gated[engine].loads for engine in (VLLM, LLAMA_CPP)] == [False, False]


def test_an_assistant_stands_elsewhere_in_some_engines_and_is_not_loaded_by_one(tmp_path: Path) -> None:
    folder = save_assistant(tmp_path / "a", SIZE)
    draft = describe_assistant(folder, FLAG)
    assert (draft.kind, draft.target.hidden, draft.target.vocab_size) == ("assistant", HIDDEN, SIZE)
    assert draft.extra == {"attends": ["sliding_attention", "full_attention"], "clusters": 0}
    found = {each.engine: each for each in served(draft, {})}
    assert [found[each].options for each in (VLLM, SGLANG)] == [{"position": "written"}] * 2
    assert (str(found[LLAMA_CPP].says), found[LLAMA_CPP].options) == ("as its writer does", None)
    assert not found[TRANSFORMERS].loads
    assert readings(draft, list(found.values()), 6) == [{}, {"position": "written"}]
    clustered = describe_assistant(save_assistant(tmp_path / "b", 256, ordered=True), FLAG)
    assert clustered.extra["clusters"] == 4


def test_what_is_said_of_transformers_and_assistants_is_so(tmp_path: Path) -> None:
    """Where a later release loads one, the table of engines is behind it."""
    with pytest.raises(ValueError, match="layer types producing a cache"):
        Gemma4AssistantForCausalLM.from_pretrained(save_assistant(tmp_path / "a", SIZE))


def test_a_target_of_another_width_or_depth_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "embedding_of", lambda source, flag: None)

    class Found:
        def __init__(self, **sizes: int) -> None:
            self.config = config_of("llama", head_dim=16, **sizes)
            self.name, self.is_encoder_decoder = "other", False

    kind = drafter_kind("heads")
    spec = Spec("heads", (("from", str(save_published(tmp_path / "a", HIDDEN, SIZE, ids=IDS))),))
    kind.require_target(spec, Found())  # type: ignore[arg-type]
    for sizes, said in (
        ({"hidden_size": 64}, "hidden states of width 32"),
        ({"vocab_size": 300}, "a vocabulary of 258"),
        ({"num_hidden_layers": 2}, "this target has 2 layers"),
    ):
        with pytest.raises(UsageError, match=said):
            kind.require_target(spec, Found(**sizes))  # type: ignore[arg-type]

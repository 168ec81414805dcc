"""A target over several devices, here a CPU and a disk, computes what it computes on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import config_of, make, pair_of, save, save_seq2seq

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Arm, Request, SamplingParams
from spsbench.config.models import AUTO, ONNXRUNTIME, TORCH
from spsbench.engines.cuda_graph import uncaptured
from spsbench.models import placement
from spsbench.models.causal_lm import skeleton
from spsbench.models.memory import weight_bytes, weights_of
from spsbench.models.pair import Pair, load_pair
from spsbench.models.placement import PlacedLM, Placement, _usable_bytes, _without_nested
from spsbench.runner.engines import EngineFactory, require_placeable
from spsbench.testing import FakeClock

CPU = torch.device("cpu")
IDS = torch.randint(250, (40,), generator=torch.Generator().manual_seed(0))
GREEDY = SamplingParams(greedy=True)
SPLIT = {"": "cpu", "model.layers.1": "disk", "model.layers.2": "disk", "model.layers.2.mlp": "cpu"}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def tied() -> Any:
    """Not to be changed; its head is its embedding."""
    return make(config_of("llama", tie_word_embeddings=True))


@pytest.fixture(scope="module")
def checkpoint(tied: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tied, tmp_path_factory.mktemp("placed") / "model")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make(config_of("llama", num_hidden_layers=1)), tmp_path_factory.mktemp("placed") / "draft")


def written(folder: Path, modules: object) -> str:
    path = folder / "map.json"
    path.write_text(modules if isinstance(modules, str) else json.dumps(modules))
    return str(path)


def load(target: Path, draft: Path, asked: str | None) -> Pair:
    source = pair_of(target, draft)
    found = None if asked is None else Placement.read(asked)
    if found is not None:
        found.require(source.target, "float32")
    return load_pair(source, ("float32", "float32"), CPU, TORCH, threads=1, placement=found)


def everything_on(where: str) -> dict[str, str]:
    return {"model": where, "lm_head": where}


@pytest.mark.parametrize("modules", [SPLIT, everything_on("disk"), "auto", "balanced", "sequential"], ids=str)
def test_a_split_target_computes_the_same(
    checkpoint: Path, draft: Path, tmp_path: Path, modules: object
) -> None:
    """Cached and uncached, bit for bit; the self-test at load passes, and records and sizes agree."""
    whole = load(checkpoint, draft, None)
    asked = modules if isinstance(modules, str) else written(tmp_path, modules)
    pair = load(checkpoint, draft, asked)
    assert isinstance(pair.target, PlacedLM)
    for model in (pair.target, pair.target.twin()):
        assert torch.equal(model.score_uncached(IDS), whole.target.score_uncached(IDS))
        assert torch.equal(model.score(IDS, 5), whole.target.twin().score(IDS, 5))
    same = ("parameters", "forward_bytes", "kv_bytes_per_token", "dtype")
    assert [pair.info["target"][name] for name in same] == [whole.info["target"][name] for name in same]
    found = pair.info["target"]["device_map"]
    assert set(found.values()) == ({*modules.values()} if isinstance(modules, dict) else {"cpu"})
    assert "device_map" not in whole.info["target"]
    on_disk = [name for name, part in pair.target.model.named_parameters() if part.is_meta]
    assert bool(on_disk) == ("disk" in found.values())


@pytest.mark.thorough
def test_every_engine_writes_the_same_text(checkpoint: Path, draft: Path, tmp_path: Path) -> None:
    """Also transformers' own, and where the embedding, to which ids go first, lies on the disk."""
    pairs = [load(checkpoint, draft, None), load(checkpoint, draft, written(tmp_path, everything_on("disk")))]
    arms = [Arm("ars", 0, engine, "greedy", GREEDY) for engine in ("eager", "hf-generate", "graphed")]
    arms.append(Arm("sps", 3, "eager", "greedy", GREEDY))
    asked = Request(tuple(range(10, 30)), 12, (), GREEDY, seed=1, fixed_length=True)
    backends = [EngineFactory(pair, 64, FakeClock(), uncaptured) for pair in pairs]
    texts = [found.build(arm).generate(asked).tokens for found in backends for arm in arms]
    assert all(text == texts[0] for text in texts)
    assert [*backends[0].fallbacks.values(), *backends[1].fallbacks.values()] == [
        "its modules lie on several devices"
    ]


def test_a_map_is_taken_apart_where_parts_of_a_module_go_elsewhere(tied: Any) -> None:
    found = _without_nested(SPLIT, skeleton(tied.config))
    assert found["model.layers.0"] == found["model.layers.2.mlp"] == found["lm_head"] == "cpu"
    assert found["model.layers.1"] == found["model.layers.2.self_attn"] == "disk"
    assert not any(one != other and other.startswith(f"{one}.") for one in found for other in found)
    assert _without_nested({"": "cpu"}, skeleton(tied.config)) == {"": "cpu"}


def test_a_strategy_leaves_room_for_the_draft() -> None:
    free = {0: 100, 1: 50, "cpu": 500}
    assert _usable_bytes(free, torch.device("cuda"), 30) == {0: 70, 1: 50, "cpu": 500}
    assert _usable_bytes(free, torch.device("cuda:1"), 60) == {0: 100, 1: 0, "cpu": 500}
    assert _usable_bytes(free, CPU, 60) == {"cpu": 440}


def test_a_device_that_cannot_hold_its_part_is_refused(
    checkpoint: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair_of(checkpoint, draft)
    both = weights_of(source.target, source.draft, ("float32", "float32"), CPU, TORCH)
    parts = [skeleton(model.config).parameters() for model in (source.target, source.draft)]
    size = 4 * sum(part.numel() for model in parts for part in model)
    monkeypatch.setattr(placement, "available_bytes", lambda device: size - 1)
    for modules, fits in (({"": "cpu"}, False), (SPLIT, True)):
        found = Placement.read(written(tmp_path, modules))
        if fits:
            found.require_room(both, source.target.config, "float32", CPU)
            continue
        with pytest.raises(UsageError, match=r"puts \S+ GiB on cpu, which has \S+ GiB free") as caught:
            found.require_room(both, source.target.config, "float32", CPU)
        assert caught.value.flag == "--device-map"
        found.require_room(replace(both, draft=0), source.target.config, "float32", CPU)


@pytest.mark.parametrize(
    ("modules", "dtype", "said"),
    [
        ("{", "float32", "is not JSON"),
        ([1], "float32", "is not a device map"),
        ({}, "float32", "is not a device map"),
        ({"": "gpu"}, "float32", "is not a device map"),
        ({"": True}, "float32", "is not a device map"),
        ({"": -1}, "float32", "is not a device map"),
        ({"": 7}, "float32", "GPU 7, and there are"),
        ({"": "cpu", "model.layers.9": "disk"}, "float32", "has no module model.layers.9"),
        ({"model": "cpu"}, "float32", "no device is given for lm_head.weight"),
        ({"model": "disk", "lm_head": "cpu"}, "float32", "are one tensor"),
        ({"": "disk"}, "float32+int8", "where quantised weights cannot be left"),
    ],
)
def test_a_wrong_map_is_refused_before_anything_is_loaded(
    checkpoint: Path, tmp_path: Path, modules: object, dtype: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Placement.read(written(tmp_path, modules)).require(pair_of(checkpoint).target, dtype)
    assert caught.value.flag == "--device-map"
    assert caught.value.remedy


def test_what_cannot_be_spread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="automatic is neither a strategy nor"):
        Placement.read("automatic")
    with pytest.raises(UsageError, match="onnxruntime computes on one CPU"):
        Placement.read("auto").backend(ONNXRUNTIME)
    assert Placement.read("auto").backend(AUTO) == TORCH
    with pytest.raises(UsageError, match="is an encoder-decoder"):
        Placement.read("auto").require(pair_of(save_seq2seq("t5", tmp_path / "t5")).target, "float32")
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="auto needs accelerate") as caught:
        Placement.read("auto")
    assert "spsbench[large]" in str(caught.value.remedy)


def test_engines_that_know_one_device_are_refused() -> None:
    """transformers' drafting makes its masks where the target's first weight is, perhaps nowhere."""
    for engine in ("hf-assisted", "hf-prompt-lookup", 'worker:"python engine.py"'):
        with pytest.raises(UsageError, match="runs on one device") as caught:
            require_placeable([Arm("sps", 3, engine, "greedy", GREEDY)])
        assert caught.value.flag == "--device-map"
    require_placeable([Arm("ars", 0, engine, "greedy", GREEDY) for engine in ("eager", "hf-generate")])


def test_drafters_that_take_parts_of_the_target_are_refused(checkpoint: Path, draft: Path) -> None:
    target = load(checkpoint, draft, "auto").target
    for ask in (lambda: target.truncated(1, "--drafter"), lambda: target.with_features("--drafter")):
        with pytest.raises(UsageError, match="needs it on one device"):
            ask()


def test_a_placement_is_its_map_and_not_its_file(tmp_path: Path) -> None:
    one = Placement.read(written(tmp_path, {"": "cpu", "lm_head": "disk"})).content
    other = tmp_path / "other"
    other.mkdir()
    assert Placement.read(written(other, {"lm_head": "disk", "": "cpu"})).content == one
    assert Placement.read(written(tmp_path, {"": "cpu"})).content != one
    assert Placement.read("auto").content == "auto"


def test_a_strategy_fills_only_what_may_be_used() -> None:
    free: dict[Any, int] = {0: 100, 1: 50, "cpu": 500}
    gpu = torch.device("cuda")
    assert _usable_bytes(free, gpu, quantised=False) == free
    assert _usable_bytes(free, gpu, quantised=True) == {0: 100, 1: 50}
    assert (
        _usable_bytes(free, CPU, quantised=False) == _usable_bytes(free, CPU, quantised=True) == {"cpu": 500}
    )


def test_quantised_weights_are_counted_as_they_are_packed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map of one GPU, which has as much free as the float weights take less a byte."""
    source = pair_of(checkpoint).target
    whole = sum(part.nbytes for part in skeleton(source.config, torch.float32).parameters())
    packed = weight_bytes(source, "float32+int8", "--target", torch.device("cuda"))
    assert packed < whole
    found = Placement("map.json", {"": 0})

    def require(dtype: str, free: int) -> None:
        monkeypatch.setattr(placement, "available_bytes", lambda device: free)
        found.require_room(weights_of(source, None, (dtype, dtype), CPU, TORCH), source.config, dtype, CPU)

    require("float32+int8", whole - 1)
    for dtype, free in (("float32", whole - 1), ("float32+int8", packed - 1)):
        with pytest.raises(UsageError, match="on cuda:0, which has"):
            require(dtype, free)


def test_a_strategy_may_not_leave_quantised_weights_elsewhere(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, gpu = pair_of(checkpoint).target, torch.device("cuda")
    packed = weight_bytes(source, "float32+int8", "--target", gpu) or 0
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for dtype, free, fits in (
        ("float32+int8", packed // 2 + 1, True),
        ("float32+int8", packed // 2 - 1, False),
        ("float32", packed // 2 - 1, True),
    ):
        monkeypatch.setattr(placement, "available_bytes", lambda device, free=free: free)
        weights = weights_of(source, None, (dtype, dtype), gpu, TORCH)
        if fits:
            Placement("auto").require_room(weights, source.config, dtype, gpu)
            continue
        with pytest.raises(UsageError, match="on GPUs alone"):
            Placement("auto").require_room(weights, source.config, dtype, gpu)

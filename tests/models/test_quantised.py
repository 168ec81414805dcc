"""Weights that torchao quantises are what its scheme says, and everything else uses these weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import config_of, make, pair_of, save, save_seq2seq
from torch import Tensor, nn

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.base.records import Arm, Request, SamplingParams
from spsbench.config.models import AUTO, ONNXRUNTIME, TORCH, Precision
from spsbench.engines.cuda_graph import uncaptured
from spsbench.models import memory as weights
from spsbench.models import quantised
from spsbench.models.batched import StaticLM, require_same_answers
from spsbench.models.causal_lm import self_test
from spsbench.models.loading import random_model
from spsbench.models.pair import Pair, load_pair, pair_backend
from spsbench.models.quantised import GROUP, quantised_of, require_quantisable, stored_bytes
from spsbench.models.torch_lm import TorchLM
from spsbench.runner.engines import EngineFactory, require_own_weights
from spsbench.testing import FakeClock

CPU, GPU = torch.device("cpu"), torch.device("cuda")
IDS = torch.randint(250, (40,), generator=torch.Generator().manual_seed(0))
GREEDY = SamplingParams(greedy=True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def wide() -> Any:
    """Its matrices consist of whole groups; not to be changed."""
    return make(config_of("llama", hidden_size=64, intermediate_size=128, num_hidden_layers=2))


@pytest.fixture(scope="module")
def checkpoint(wide: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(wide, tmp_path_factory.mktemp("quantised") / "model")


def load(folder: Path, *dtypes: str) -> Pair:
    return load_pair(pair_of(folder), (dtypes[0], dtypes[-1]), CPU, TORCH, threads=1)


def quantised_by_hand(weight: Tensor, bits: int) -> Tensor:
    """One row, at 4 bits one group, after the other, in plain sight."""
    found = torch.empty_like(weight)
    width = weight.shape[1] if bits == 8 else GROUP
    for r, row in enumerate(weight):
        for first in range(0, weight.shape[1], width):
            part = row[first : first + width]
            if bits == 8:
                step = part.abs().max() / 127.5
                # The largest lies halfway between two values; which one it gets depends on this product.
                found[r] = (part * (1.0 / step)).round().clamp(-128, 127) * step
            else:
                step = (part.max() - part.min()) / 15
                found[r, first : first + width] = part.min() + ((part - part.min()) / step).round() * step
    return found


def by_hand(model: Any, bits: int) -> TorchLM:
    own = copy.deepcopy(model)
    for part in own.modules():
        if isinstance(part, nn.Linear) and part is not own.get_output_embeddings():
            part.weight.copy_(quantised_by_hand(part.weight, bits))
    return TorchLM(own)


@pytest.mark.parametrize(("bits", "other"), [(8, 4), (4, 8)])
def test_the_forwards_are_those_of_the_quantised_weights(
    wide: Any, checkpoint: Path, bits: int, other: int
) -> None:
    """The uncached one too, by which evidence judges: losslessness is with respect to these weights."""
    target = load(checkpoint, f"int{bits}").target
    expected = by_hand(wide, bits).score_uncached(IDS)
    scale = float(expected.abs().max())
    for found in (target.score(IDS, len(IDS)), target.score_uncached(IDS)):
        assert float((found - expected).abs().max()) < 1e-3 * scale
    for wrong in (TorchLM(wide), by_hand(wide, other)):
        assert float((wrong.score_uncached(IDS) - expected).abs().max()) > 1e-2 * scale
    assert self_test(target).worst < 1e-4


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16+int8", "bfloat16+int4"])
def test_the_record_says_how_and_sizes_are_of_packed_weights(checkpoint: Path, dtype: str) -> None:
    pair, asked = load(checkpoint, dtype), Precision(dtype)
    told, plain = pair.info["target"], load(checkpoint, asked.dtype).info["target"]
    assert (told["dtype"], told["backend"]) == (asked.quantise, TORCH)
    assert told["quantised"]["by"].startswith("torchao ")
    assert told["quantised"]["layers"] == 2 * 7
    assert 0.5 < told["quantised"]["share"] < 1
    assert told["parameters"] == plain["parameters"]
    assert "quantised" not in plain
    assert told["forward_bytes"] < plain["forward_bytes"]
    assert isinstance(pair.target, TorchLM)
    held = sum(map(stored_bytes, pair.target.model.parameters()))
    assert weights.weight_bytes(pair_of(checkpoint).target, dtype, "--target", CPU) == held


def test_memory_is_asked_for_the_packed_weights(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pair_of(checkpoint)
    small, large = (weights.weight_bytes(source.target, d, "--target", CPU) or 0 for d in ("int4", "float32"))
    monkeypatch.setattr(weights, "available_bytes", lambda device: small)
    assert small < large
    load(checkpoint, "int4")
    with pytest.raises(UsageError, match="--dtype bfloat16 or int8"):
        load(checkpoint, "float32")


@pytest.mark.parametrize("dtypes", [("float32", "int8"), ("int4", "float32")])
def test_one_of_two_models_is_quantised(checkpoint: Path, dtypes: tuple[str, str]) -> None:
    """Its own quantised copy drafts for the target, or the target is the quantised one."""
    pair = load(checkpoint, *dtypes)
    assert not pair.is_one
    assert (pair.info["target"]["dtype"], pair.info["draft"]["dtype"]) == dtypes
    assert not torch.equal(pair.target.score_uncached(IDS), pair.draft.score_uncached(IDS))


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_built_model_gets_the_same_values_as_a_loaded_one(wide: Any, checkpoint: Path, bits: str) -> None:
    target = load(checkpoint, bits).target
    built = random_model(wide.config, bits, CPU, target.vocab_size, TORCH)
    assert isinstance(built, TorchLM)
    assert isinstance(target, TorchLM)
    fresh = random_model(wide.config, "float32", CPU, target.vocab_size, TORCH)
    assert isinstance(fresh, TorchLM)
    fresh.model.load_state_dict(wide.state_dict())
    quantised.quantise_built(fresh.model, Precision(bits), CPU)
    assert torch.equal(fresh.score_uncached(IDS), target.score_uncached(IDS))
    assert [asdict(found) for m in (fresh, built) if (found := quantised_of(m.model))] == 2 * [
        asdict(quantised_of(target.model))  # type: ignore[arg-type]
    ]


def test_matrices_without_whole_groups_stay_floats(tmp_path: Path) -> None:
    """Rows of 48 are no whole groups, and 24 rows no whole blocks: torch would read beyond, or fail."""
    folder = save(
        make(config_of("llama", hidden_size=64, intermediate_size=48, num_attention_heads=8)), tmp_path
    )
    told = {bits: load(folder, bits).info["target"]["quantised"]["layers"] for bits in ("int8", "int4")}
    assert told == {"int8": 4 * 7, "int4": 4 * 6}  # down_proj reads 48


def test_an_encoder_decoder_is_quantised(tmp_path: Path) -> None:
    for name in ("t5", "bart"):
        folder = save_seq2seq(name, tmp_path / name)
        plain, small = load(folder, "float32"), load(folder, "int8")
        assert small.info["target"]["quantised"]["layers"] > 10
        assert small.target.forward_bytes() < plain.target.forward_bytes()


def test_a_quantised_model_has_fixed_shapes(checkpoint: Path) -> None:
    target = load(checkpoint, "int8").target
    assert isinstance(target, TorchLM)
    require_same_answers(target, StaticLM(target, 64), 64)


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("float32", "int4")])
def test_every_engine_writes_the_quantised_targets_text(checkpoint: Path, dtypes: tuple[str, str]) -> None:
    pair = load(checkpoint, *dtypes)
    engines = ("eager", "graphed", "hf-generate", "hf-assisted")
    arms = [Arm("sps" if e == "hf-assisted" else "ars", 3, e, "greedy", GREEDY) for e in engines]
    arms.append(Arm("sps", 3, "eager", "greedy", GREEDY))
    backends = EngineFactory(pair, 64, FakeClock(), uncaptured)
    asked = Request(tuple(range(10, 30)), 20, (), GREEDY, seed=1, fixed_length=True)
    texts = [backends.build(arm).generate(asked).tokens for arm in arms]
    assert not backends.fallbacks
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize(("engine", "draft"), [("hf-generate", "int8"), ("hf-assisted", "int8")])
def test_transformers_has_not_the_weights_that_onnx_runtime_rounds(engine: str, draft: str) -> None:
    """It would write the unrounded target's text, and the run would raise an alarm."""
    arm = Arm("ars" if engine == "hf-generate" else "sps", 3, engine, "greedy", GREEDY)
    with pytest.raises(UsageError, match=f"{engine} runs over torch, and the target's weights") as caught:
        require_own_weights([arm], ("int8", draft), ONNXRUNTIME)
    assert caught.value.flag == "--backend"
    require_own_weights([arm], ("int8", draft), TORCH)
    require_own_weights([arm], ("float32", "float32"), ONNXRUNTIME)
    require_own_weights([Arm("ars", 0, "eager", "greedy", GREEDY)], ("int8", "int8"), ONNXRUNTIME)


def test_torch_quantises_what_onnx_runtime_does_not_cover(checkpoint: Path) -> None:
    asked = {"int8": ONNXRUNTIME, "float32+int8": ONNXRUNTIME, "bfloat16+int8": TORCH}
    found = {d: pair_backend(AUTO, pair_of(checkpoint), (d, d), CPU)[0] for d in asked}
    assert found == asked
    assert pair_backend(TORCH, pair_of(checkpoint), ("int8", "int8"), CPU) == (TORCH, None)


@pytest.mark.parametrize(
    ("asked", "device", "said", "kind"),
    [
        ("float32+int4", GPU, "int4 over CUDA computes in bfloat16 alone, not in float32", UsageError),
        ("int8", torch.device("mps"), "runs on cpu and cuda, not on mps", UsageError),
        ("bfloat16+int4", GPU, None, UsageError),
        ("int8", GPU, None, UsageError),
        ("float32", torch.device("mps"), None, UsageError),
    ],
)
def test_what_a_device_cannot_is_refused(
    wide: Any, asked: str, device: torch.device, said: str | None, kind: type[SpsbenchError]
) -> None:
    def ask() -> None:
        require_quantisable(wide.config, None, Precision(asked), device, "model")

    if said is None:
        ask()
        return
    with pytest.raises(kind, match=said) as caught:
        ask()
    assert caught.value.flag == "--dtype"


@pytest.mark.parametrize("missing", ["torchao", "accelerate"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    wide: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UnavailableError, match=f"int8 over torch needs {missing}, which is not") as caught:
        require_quantisable(wide.config, None, Precision("int8"), GPU, "model")
    assert "pip install 'spsbench[large]'" in str(caught.value.remedy)


def test_models_that_cannot_be_quantised_are_refused_before_they_are_loaded(tmp_path: Path) -> None:
    folder = save(make(config_of("gpt2")), tmp_path / "gpt2")
    with pytest.raises(UsageError, match="has no linear layer that torchao can quantise to int8") as caught:
        pair_backend(TORCH, pair_of(folder), ("float32", "int8"), CPU)
    assert caught.value.flag == "--dtype"
    path = folder / "config.json"
    settings = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8}}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UsageError, match="is quantised by gptq already") as caught:
        pair_backend(TORCH, pair_of(folder), ("int8", "float32"), CPU)
    assert caught.value.flag == "--dtype"

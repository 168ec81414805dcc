"""Which backend a run gets, and what is said where it is not the one that was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import config_of, make, pair_of, save

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.config.models import AUTO, ONNXRUNTIME, TORCH
from spsbench.models import memory as weights
from spsbench.models.loading import choose_backend
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.pair import Pair, PairSource, load_pair, pair_backend
from spsbench.models.torch_lm import TorchLM

CPU = torch.device("cpu")
EXACT = ("float32", "float32")


def load(source: PairSource, dtypes: tuple[str, str] = EXACT, asked: str = AUTO) -> Pair:
    backend, _ = pair_backend(asked, source, dtypes, CPU)
    return load_pair(source, dtypes, CPU, backend, threads=1)


def test_a_covered_pair_runs_over_onnxruntime(folder: Path) -> None:
    pair = load(pair_of(folder))
    assert isinstance(pair.target, OnnxLM)
    assert pair.info["target"]["backend"] == pair.info["draft"]["backend"] == ONNXRUNTIME
    assert pair.info["target"]["self_test"]["cached"] < 1e-3
    assert pair.info["threads"] == 1
    ids = torch.arange(30)
    with torch.inference_mode():
        rows, reference = pair.target.score(ids, 30), pair.target.reference().score_uncached(ids)
    assert torch.allclose(rows, reference, atol=1e-3)


def test_torch_is_what_one_gets_who_asks_for_it(folder: Path) -> None:
    pair = load(pair_of(folder), asked=TORCH)
    assert isinstance(pair.target, TorchLM)
    assert pair.info["target"]["backend"] == TORCH


@pytest.mark.parametrize(("dtypes", "said"), [(("bfloat16",) * 2, "it computes in bfloat16"), (EXACT, None)])
def test_auto_says_why_it_fell_back(folder: Path, dtypes: tuple[str, str], said: str | None) -> None:
    backend, reason = pair_backend(AUTO, pair_of(folder), dtypes, CPU)
    assert backend == (TORCH if said else ONNXRUNTIME)
    assert reason == (f"{folder}: {said} (--dtype float32 runs over ONNX Runtime)" if said else None)


def test_no_other_dtype_is_promised_a_model_that_is_not_covered_in_any(tmp_path: Path) -> None:
    other = save(make(config_of("gpt2")), tmp_path / "gpt2")
    backend, reason = pair_backend(AUTO, pair_of(other), ("bfloat16",) * 2, CPU)
    assert (backend, reason) == (TORCH, f"{other}: the architecture gpt2 is not covered")


def test_one_model_that_is_not_covered_takes_both_to_torch(folder: Path, tmp_path: Path) -> None:
    other = save(make(config_of("gpt2")), tmp_path / "gpt2")
    backend, reason = pair_backend(AUTO, pair_of(folder, other), EXACT, CPU)
    assert (backend, reason) == (TORCH, f"{other}: the architecture gpt2 is not covered")
    with pytest.raises(UsageError, match=r"gpt2 is not covered.*onnxruntime computes llama, ") as caught:
        pair_backend(ONNXRUNTIME, pair_of(folder, other), EXACT, CPU)
    assert caught.value.flag == "--backend"


def test_one_checkpoint_in_two_dtypes_is_judged_for_both(folder: Path) -> None:
    """Its name says nothing: the target is not covered, whatever its copy that drafts is."""
    source = pair_of(folder)
    for dtypes in (("bfloat16", "float32"), ("float32", "bfloat16")):
        backend, reason = pair_backend(AUTO, source, dtypes, CPU)
        assert (backend, "it computes in bfloat16" in str(reason)) == (TORCH, True)


def test_weights_in_another_format_fall_back(llama: Any, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(llama.state_dict(), folder / "pytorch_model.bin")
    assert pair_backend(AUTO, pair_of(folder), EXACT, CPU) == (
        TORCH,
        f"{folder}: its weights are in no safetensors file",
    )


@pytest.mark.parametrize(("dtypes", "kept"), [(("int8", "int8"), "int8"), (("float32", "int4"), "float32")])
def test_rounded_weights_are_named_in_the_record(folder: Path, dtypes: tuple[str, str], kept: str) -> None:
    pair = load(pair_of(folder), dtypes)
    assert pair.info["target"]["dtype"] == kept
    assert pair.info["draft"]["dtype"] == dtypes[1]


def test_rounded_weights_do_not_fall_back_in_silence(folder: Path, tmp_path: Path) -> None:
    other = save(make(config_of("opt")), tmp_path / "opt")
    backend, reason = pair_backend(AUTO, pair_of(other), ("int8", "int8"), CPU)
    assert (backend, reason) == (TORCH, f"{other}: the architecture opt is not covered")
    with pytest.raises(UsageError, match="opt is not covered") as caught:
        pair_backend(ONNXRUNTIME, pair_of(other), ("int8", "int8"), CPU)
    assert caught.value.flag == "--backend"


def test_a_gpu_is_torchs_and_nothing_is_said() -> None:
    reasons = [("model", "the device is cuda")]
    assert choose_backend(AUTO, reasons, torch.device("cuda")) == (TORCH, None)


def test_missing_weights_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(file).items() if not k.startswith("model.layers.1.")}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(UnavailableError, match=r"incomplete: .* missing \(model\.layers\.1"):
        load(pair_of(folder))


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 64}))
    with pytest.raises(UnavailableError, match=r"cannot be read: .*mlp.* has the shape \(48, 64\), not"):
        load(pair_of(folder))


def test_a_truncated_file_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UnavailableError, match=r"cannot be read: .*incomplete") as caught:
        load(pair_of(folder))
    assert caught.value.flag == "--target"


def test_a_pair_that_does_not_fit_while_it_is_loaded_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are there twice while they are packed, one model after the other."""
    source = pair_of(folder, shutil.copytree(folder, tmp_path / "draft"))
    size = weights.weight_bytes(source.target, "float32", "--target") or 0
    monkeypatch.setattr(weights, "available_bytes", lambda device: 3 * size)
    load(source)
    monkeypatch.setattr(weights, "available_bytes", lambda device: 3 * size - 1)
    with pytest.raises(UsageError, match=r"need .* GiB while they are loaded, but cpu has"):
        load(source)


@pytest.mark.parametrize(("backend", "held"), [(ONNXRUNTIME, 4), (TORCH, 2)])
def test_stock_models_beside_onnx_runtime_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, held: int
) -> None:
    """Beam search over ONNX Runtime holds both models a second time; over torch it shares their weights."""
    source = pair_of(folder, shutil.copytree(folder, tmp_path / "draft"))
    size = weights.weight_bytes(source.target, "float32", "--target") or 0
    found = weights.weights_of(source.target, source.draft, EXACT, CPU, backend)
    monkeypatch.setattr(weights, "available_bytes", lambda device: held * size)
    found.require("both", CPU, backend, [source.target, source.draft])
    monkeypatch.setattr(weights, "available_bytes", lambda device: held * size - 1)
    with pytest.raises(UsageError, match=r"need \S+ GiB( over ONNX Runtime and torch together)?, but cpu"):
        found.require("both", CPU, backend, [source.target, source.draft])

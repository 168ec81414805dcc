"""A checkpoint over ONNX Runtime is held against transformers' own loading; a wrong conversion is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commandline import call
from support.onnx_variants import VARIANTS, variant
from support.tiny_models import config_of, make, over_onnx, pair_of, save, save_seq2seq

from spsbench.base.errors import UnavailableError
from spsbench.models import same_logits
from spsbench.models.causal_lm import tolerance
from spsbench.models.fetch.cache import cache_dir
from spsbench.models.loading import load, load_torch
from spsbench.models.onnx_graph import Builder
from spsbench.models.same_logits import compared, require_same_logits
from spsbench.models.torch_lm import TorchLM

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """A model with a head of its own."""
    return save(make(config_of("llama", head_dim=16, tie_word_embeddings=False)), tmp_path / "untied")


def loaded(folder: Path) -> Any:
    source = pair_of(folder).target
    return load(source, "float32", CPU, source.config.vocab_size, "--target", "onnxruntime", 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_covered_variant_agrees(name: str) -> None:
    with torch.inference_mode():
        reference = variant(name)
    assert compared(over_onnx(reference.model), reference).difference < tolerance(torch.float32) / 4


def _embedding_as_head(self: Any) -> str:
    return "model.embed_tokens"


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "the embedding as head": ("_head", _embedding_as_head),
    "another activation": ("_activated", lambda self, x: self._node("Gelu", [x], approximate="tanh")),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_conversion_is_refused(fault: str, untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Builder, *WRONG[fault])
    with pytest.raises(UnavailableError, match="is not the model that transformers loads: logits differ by"):
        loaded(untied)


def test_another_weight_is_seen() -> None:
    model = make(config_of("llama", head_dim=16))
    right = over_onnx(model)
    other = make(config_of("llama", head_dim=16))
    with torch.no_grad():
        other.model.layers[1].input_layernorm.weight.mul_(1.1)
    assert compared(right, TorchLM(model)).difference < tolerance(torch.float32) / 4
    assert compared(right, TorchLM(other)).difference > tolerance(torch.float32)


def test_it_is_compared_once_and_again_where_the_code_is_another(
    untied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = same_logits.compared

    def counted(*arguments: Any) -> Any:
        seen.append("compared")
        return real(*arguments)

    monkeypatch.setattr(same_logits, "compared", counted)
    loaded(untied)
    loaded(untied)
    assert len(seen) == 1
    monkeypatch.setattr(same_logits, "_hash_of_sources", lambda: "another")
    loaded(untied)
    assert len(seen) == 2


def test_a_refusal_is_kept_too(untied: Path) -> None:
    loaded(untied)
    (record,) = (cache_dir() / "compared").glob("*.json")
    record.write_text(json.dumps({"difference": 0.5, "tokens": 192}))
    with pytest.raises(UnavailableError, match=r"logits differ by 0\.5 of the largest over 192 tokens"):
        loaded(untied)


def test_a_model_too_large_for_a_second_copy_is_not_compared(
    untied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_logits, "available_bytes", lambda device: 1000)
    source = pair_of(untied).target
    model = over_onnx(make(config_of("llama", head_dim=16)))

    def never() -> Any:
        raise AssertionError("a second copy does not fit")

    require_same_logits(model, source, never, "--target")


def test_an_encoder_decoder_agrees(tmp_path: Path) -> None:
    source = pair_of(save_seq2seq("t5", tmp_path / "t5")).target
    own = load(source, "float32", CPU, source.config.vocab_size, "--target", "onnxruntime", 1)
    assert own.backend == "onnxruntime"
    other = load_torch(source, "float32", CPU, source.config.vocab_size, "--target")
    assert compared(own, other).difference < tolerance(torch.float32) / 4


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_a_head_that_is_neither_stored_nor_tied_is_missed_on_both_backends(
    backend: str, untied: Path, tmp_path: Path
) -> None:
    stored = untied / "model.safetensors"
    weights = load_file(stored)
    del weights["lm_head.weight"]
    save_file(weights, stored, metadata={"format": "pt"})
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n')
    result = call("run", prompts, "--target", untied, "--draft", untied, "--backend", backend)
    assert result.code == 3
    missing = "1 of its weights are missing (lm_head.weight) and its configuration says"
    assert f"{missing} tie_word_embeddings: false" in result.err


def retied(folder: Path, **more: torch.Tensor) -> Path:
    """The checkpoint with a configuration that ties its head, and further weights."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = load_file(folder / "model.safetensors")
    save_file(weights | more, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run_over(backend: str, folder: Path, tmp_path: Path) -> Any:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n')
    models = ("--target", folder, "--draft", folder, "--backend", backend)
    return call(
        "run", prompts, *models, "--max-new-tokens", "4", "--set", "warmup=false", "--out", tmp_path / "r"
    )


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_a_head_beside_a_tied_one_is_refused_on_both_backends(
    backend: str, untied: Path, tmp_path: Path
) -> None:
    result = run_over(backend, retied(untied), tmp_path)
    assert result.code == 3
    assert "has two heads: its configuration says tie_word_embeddings: true, and it stores" in result.err
    assert "lm_head.weight, which is not model.embed_tokens.weight." in result.err


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_a_tied_head_may_be_stored_twice_and_what_is_not_read_is_said(
    backend: str, untied: Path, tmp_path: Path
) -> None:
    embedding = load_file(untied / "model.safetensors")["model.embed_tokens.weight"]
    more = {"lm_head.weight": embedding.clone(), "model.vision.weight": torch.zeros(3)}
    folder = retied(untied, **more)
    for _ in range(2):  # from the cache, too
        result = run_over(backend, folder, tmp_path)
        assert result.code == 0, result.err
        shutil.rmtree(tmp_path / "r")
        said = "stores weights that its configuration does not use: 1 is not read (model.vision.weight)"
        assert said in " ".join(result.err.split())

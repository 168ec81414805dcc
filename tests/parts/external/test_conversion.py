"""Models in the formats of other engines: what is written, and that it is whole and made once."""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import save_file

from benchmarks.architectures import saved
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.parts.external import conversion
from spsbench.parts.external.install import Environment
from spsbench.parts.external.workers.openvino import _content_key, restored


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tensors(file: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(file).tensors}


def test_gguf_is_written_once_with_rotated_heads(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    found = conversion.gguf(model)
    written = tensors(found)
    assert len(written) == 11  # the tied head is not among them
    # Halves become neighbours: the rows of a head of four come as 0, 2, 1, 3.
    assert written["blk.0.attn_q.weight"][:, 0].tolist() == [100.0, 102.0, 101.0, 103.0]
    assert {array.dtype for array in written.values()} == {np.dtype(np.float32)}
    before = found.stat().st_mtime_ns
    assert conversion.gguf(model).stat().st_mtime_ns == before


def test_gguf_in_float16_keeps_norms_in_float32(tmp_path: Path) -> None:
    written = tensors(conversion.gguf(tiny_llama(tmp_path / "model"), "float16"))
    assert written["blk.0.attn_q.weight"].dtype == np.float16
    assert written["output_norm.weight"].dtype == np.float32


def test_what_an_engine_reads_of_the_configuration_is_in_the_file(tmp_path: Path) -> None:
    reader = GGUFReader(conversion.gguf(tiny_llama(tmp_path / "model")))
    names = ("general.architecture", "llama.context_length", "llama.attention.head_count")
    read = [reader.get_field(name) for name in (*names, "tokenizer.ggml.eos_token_id")]
    assert [field.contents() for field in read if field] == ["llama", 8, 1, 0]
    tokens = reader.get_field("tokenizer.ggml.tokens")
    assert tokens.contents() == ["<end>", "a", "b"]


def test_other_weights_of_the_same_name_are_converted_anew(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    first = conversion.gguf(model)
    moved = model.rename(tmp_path / "elsewhere")
    assert conversion.gguf(moved) == first
    other = tiny_llama(tmp_path / "model", first_row=7.0)
    assert conversion.gguf(other) != first


@pytest.mark.thorough
def test_targets_with_a_recurrent_state_are_written_for_llama_cpp_alone(tmp_path: Path) -> None:
    """That it reads their law was tried by hand: log-probabilities equal to 1e-6."""
    mamba, _, model = saved("mamba", tmp_path / "mamba", intermediate_size=128)
    written = tensors(conversion.gguf(mamba))
    state = model.state_dict()
    decay = -state["backbone.layers.1.mixer.A_log"].exp().numpy()
    np.testing.assert_allclose(written["blk.1.ssm_a"], decay)
    assert written["blk.0.ssm_conv1d.weight"].shape == (128, 4)
    assert {"blk.0.ssm_dt.bias", "blk.0.ssm_d", "output_norm.weight"} <= set(written)
    hybrid, _, _ = saved("lfm2", tmp_path / "lfm2")
    file = conversion.gguf(hybrid)
    tokens = GGUFReader(file).get_field("tokenizer.ggml.tokens")
    assert tokens is not None
    assert tokens.contents()[-3:] == ["[<s>]", "</s>", "[<|endoftext|>]"]  # at whose name it would end
    heads = GGUFReader(file).get_field("lfm2.attention.head_count_kv")
    assert heads is not None
    assert heads.contents() == [0, 0, 2, 0]
    assert tensors(file)["blk.0.shortconv.conv.weight"].shape == (64, 3)
    with pytest.raises(UsageError, match="written in float32 alone"):
        conversion.gguf(hybrid, "q8_0")
    with pytest.raises(UsageError, match="another architecture"):
        conversion.openvino(hybrid, Environment(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "another architecture"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "another architecture"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_anything_is_made(
    tmp_path: Path, cache: Path, change: dict[str, object], words: str
) -> None:
    model = tiny_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    for convert in (conversion.gguf, lambda folder: conversion.openvino(folder, Environment(tmp_path))):
        with pytest.raises(UsageError, match=words):
            convert(model)
    (model / "model.safetensors").unlink()
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        conversion.gguf(model)
    assert not cache.exists()


def test_half_of_a_conversion_is_never_found(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(tmp_path / "model")
    whole = conversion.write_gguf

    def interrupted(folder: Path, out: Path, dtype: str) -> None:
        out.write_bytes(b"GGUF")
        raise KeyboardInterrupt

    monkeypatch.setattr(conversion, "write_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conversion.gguf(model)
    assert [path.suffix for path in (cache / "converted").iterdir()] == [".lock"]
    monkeypatch.setattr(conversion, "write_gguf", whole)
    assert conversion.gguf(model).is_file()


def test_two_at_once_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(tmp_path / "model")
    whole, made = conversion.write_gguf, []

    def counted(folder: Path, out: Path, dtype: str) -> None:
        made.append(out)
        whole(folder, out, dtype)

    monkeypatch.setattr(conversion, "write_gguf", counted)
    threads = [threading.Thread(target=conversion.gguf, args=(model,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def engine(folder: Path, builder: str) -> Environment:
    """An environment with a builder of ONNX Runtime GenAI's name."""
    site = folder / "lib/python3.99/site-packages"
    models = site / "onnxruntime_genai/models"
    models.mkdir(parents=True)
    (site / "onnxruntime_genai-9.9.dist-info").mkdir()
    (site / "only_there.py").write_text("NAME = 'of the engine'")
    (models / "beside.py").write_text("")
    (models / "builder.py").write_text(builder)
    return Environment(folder)


@pytest.mark.thorough
def test_the_builder_of_onnx_runs_here_with_what_the_engine_adds(tmp_path: Path) -> None:
    builder = (
        "import sys, pathlib, torch, beside, only_there\n"
        "assert 'site-packages' in torch.__file__ and '3.99' not in torch.__file__\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('-o') + 1])\n"
        "(out / 'model.onnx').write_text(only_there.NAME)\n"
    )
    found = conversion.onnx(tiny_llama(tmp_path / "model"), engine(tmp_path / "engine", builder))
    assert (found / "model.onnx").read_text() == "of the engine"
    assert "9.9" in found.name


_BUILDS_A_MODULE = """
import sys, pathlib, onnx
from onnx import helper
out = pathlib.Path(sys.argv[sys.argv.index('-o') + 1])
rows = [helper.make_tensor_value_info(name, 1, [1, 3]) for name in ('hidden', 'logits')]
node = helper.make_node('Add', ['hidden', 'hidden'], ['logits'])
graph = helper.make_graph([node], 'g', rows[:1], rows[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 20)], ir_version=10)
onnx.save(model, out / 'model.onnx')
(out / 'mtp.onnx').touch()
"""


def test_beside_a_module_the_logits_come_in_float16_too(tmp_path: Path) -> None:
    folder = conversion.onnx(tiny_llama(tmp_path / "model"), engine(tmp_path / "engine", _BUILDS_A_MODULE))
    hidden = np.array([[1.0, 1 / 3, -1000.1]], dtype=np.float32)
    exact, half = (
        onnxruntime.InferenceSession(folder / name).run(["logits"], {"hidden": hidden})[0]
        for name in ("model.onnx", conversion.HALF_LOGITS)
    )
    assert (exact.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(half, exact.astype(np.float16))
    assert not np.array_equal(half, exact)


def test_a_builder_that_fails_says_why(tmp_path: Path, cache: Path) -> None:
    environment = engine(tmp_path / "engine", "raise SystemExit('ERROR: such a model is unknown')")
    with pytest.raises(UnavailableError, match="such a model is unknown"):
        conversion.onnx(tiny_llama(tmp_path / "model"), environment)
    assert not [path for path in (cache / "converted").iterdir() if path.is_dir()]


GENAI = """
from pathlib import Path
class LLMPipeline:
    def __init__(self, file, device, enable_save_ov_model):
        assert Path(file).read_bytes()[:4] == b"GGUF"
        for name in ("openvino_model.xml", "openvino_model.bin"):
            Path(file).with_name(name).write_text("rounded")
"""
OPENVINO = """
from pathlib import Path
class Core:
    def read_model(self, file):
        assert Path(file).read_text() == "rounded"
        return self
    def get_ordered_ops(self):
        return []
def save_model(model, file, compress_to_fp16):
    assert not compress_to_fp16
    for name in (file, file.with_suffix(".bin")):
        Path(name).write_text("exact")
"""


def test_openvino_saves_its_format_and_the_exact_weights_take_its_place(tmp_path: Path) -> None:
    site = tmp_path / "engine/lib/python3.99/site-packages"
    site.mkdir(parents=True)
    (site / "openvino.py").write_text(OPENVINO)
    (site / "openvino_genai.py").write_text(GENAI)
    environment = Environment(tmp_path / "engine")
    environment.python.parent.mkdir()
    environment.python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    environment.python.chmod(0o755)
    found = conversion.openvino(tiny_llama(tmp_path / "model"), environment)
    assert {path.name: path.read_text() for path in found.iterdir()} == {
        "openvino_model.xml": "exact",
        "openvino_model.bin": "exact",
    }


def test_openvino_gets_the_float32_array_that_a_constant_is_the_rounding_of() -> None:
    exact = np.linspace(0.1, 0.7, 6, dtype=np.float32).reshape(2, 3)
    known = {_content_key(exact): exact}
    found = restored(exact.astype(np.float16)[None], known)
    assert found.shape == (1, 2, 3)
    assert np.array_equal(found[0], exact)
    assert restored(np.array([-65504], dtype=np.float16), known).dtype == np.float32
    with pytest.raises(ValueError, match="none of the model's weights"):
        restored(np.ones((2, 3), dtype=np.float16), known)


def tiny_llama(folder: Path, first_row: float = 100.0) -> Path:
    """One layer, one head of width 4; the rows of its queries count from ``first_row``."""
    folder.mkdir()
    width = 4
    layer = "model.layers.0."
    zeros = partial(torch.zeros, width, width)
    attention = ("k_proj", "v_proj", "o_proj")
    state = {f"{layer}self_attn.{name}.weight": zeros() for name in attention}
    rows = torch.arange(first_row, first_row + 4)
    state[f"{layer}self_attn.q_proj.weight"] = rows[:, None].repeat(1, width)
    state |= {f"{layer}mlp.{name}.weight": zeros() for name in ("gate_proj", "up_proj", "down_proj")}
    norms = [f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"]
    state |= {f"{name}.weight": torch.ones(width) for name in norms}
    state |= {name: torch.zeros(3, width) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 1, "num_key_value_heads": 1}
    config |= {"head_dim": width, "num_hidden_layers": 1, "intermediate_size": width, "vocab_size": 3}
    config |= {"max_position_embeddings": 8, "rms_norm_eps": 1e-6, "eos_token_id": [0], "pad_token_id": None}
    more = {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    (folder / "config.json").write_text(json.dumps(config | more))
    added = [{"content": "<end>", "id": 0, "special": True}]
    tokenizer = {"model": {"vocab": {"a": 1, "b": 2}, "merges": []}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder

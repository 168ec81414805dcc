"""Models in the formats of other engines, made once and kept in the work folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.engines.gguf import write_gguf
from benchmarks.engines.worker_process import ROOT

_OPENVINO = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""
_GGUF, _EXACT = "model.gguf", "exact.npz"


def gguf(model: Path, work: Path) -> Path:
    """A GGUF file in float32."""
    return _once(model, work, "gguf-f32", lambda out: write_gguf(model, out / _GGUF, "float32")) / _GGUF


def onnx(model: Path, work: Path, python: Path) -> Path:
    """A folder of ONNX Runtime GenAI's builder in float32; its environment needs torch and transformers."""

    def build(out: Path) -> None:
        flags: list[str | Path] = ["-i", model, "-o", out, "-p", "fp32", "-e", "cpu", "-c", out / "cache"]
        _call([python, "-m", "onnxruntime_genai.models.builder", *flags])
        shutil.rmtree(out / "cache", ignore_errors=True)

    return _once(model, work, "onnx", build)


def openvino(model: Path, work: Path, python: Path) -> Path:
    """A folder of OpenVINO's in float32, by way of a GGUF file in float16: it reads no other."""

    def build(out: Path) -> None:
        write_gguf(model, out / _GGUF, "float16")
        _call([python, "-c", _OPENVINO, out / _GGUF])
        np.savez(out / _EXACT, **_float32(model))
        _call([python, "-m", "benchmarks.engines.openvino_model", out, out / _EXACT])
        for name in (_GGUF, _EXACT):
            (out / name).unlink()

    return _once(model, work, "openvino-f32", build)


def _float32(model: Path) -> dict[str, Any]:
    """Every weight, and the frequencies of the rotation as transformers computes them."""
    config = json.loads((model / "config.json").read_text())
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    powers = torch.arange(0, width, 2, dtype=torch.float32) / width
    frequencies = 1.0 / config["rope_parameters"]["rope_theta"] ** powers
    state = load_file(model / "model.safetensors") | {"inverse frequencies": frequencies}
    return {name: tensor.float().numpy() for name, tensor in state.items()}


def _once(model: Path, work: Path, form: str, build: Callable[[Path], None]) -> Path:
    """The folder of a model in a form; built beside it and renamed, so that half of one is never found."""
    folder = work / _name(model) / form
    if not folder.is_dir():
        part = folder.with_name(f"{form}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        build(part)
        part.rename(folder)
    return folder


def _name(model: Path) -> str:
    """The folder's name and its content's: other weights of the same name are converted anew."""
    content = hashlib.sha256((model / "config.json").read_bytes())
    with (model / "model.safetensors").open("rb") as file:
        while block := file.read(1 << 24):
            content.update(block)
    return f"{model.parent.name}-{model.name}-{content.hexdigest()[:8]}"


def _call(command: list[str | Path]) -> None:
    """Run a converter.

    Raises:
        RuntimeError: it failed; with the last line that it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(
            f"{' '.join(map(str, command[:3]))} failed: {said[-1] if said else done.returncode}"
        )

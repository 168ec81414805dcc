"""Models in the formats of other engines, made once and kept in the work folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.engines.gguf import write_gguf

_OPENVINO = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""
_GGUF = "model.gguf"


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
    """A folder of OpenVINO's, by way of a GGUF file in float16: it reads none in float32."""

    def build(out: Path) -> None:
        write_gguf(model, out / _GGUF, "float16")
        _call([python, "-c", _OPENVINO, out / _GGUF])
        (out / _GGUF).unlink()

    return _once(model, work, "openvino-f16", build)


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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(
            f"{' '.join(map(str, command[:3]))} failed: {said[-1] if said else done.returncode}"
        )

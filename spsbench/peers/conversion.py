"""Models in the formats of other engines: made once of a Hugging Face folder, and kept in the cache.

converted/HASH-FORM/           by the content of the model, and whole: made beside it and renamed
converted/HASH-FORM.lock       held while it is made
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError
from spsbench.fetch.cache import cache_dir, locked, megabytes, require_room, watcher, written_whole
from spsbench.peers.commands import clean_environment, run
from spsbench.peers.environment import Environment
from spsbench.peers.gguf_writer import WEIGHTS, head_width, read_config, write_gguf
from spsbench.peers.launch import LAUNCH

_GGUF, _EXACT = "model.gguf", "exact.npz"
_HASHED = ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)
_VERSION = "v1"
"""Of the way models are converted: another one makes new folders."""

_SAVE_OPENVINO = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""
_BUILD_ONNX = """
import runpy, sys
site = sys.argv.pop(1)
sys.path.append(site)  # after our own: torch, transformers and onnx are ours, onnx_ir is the engine's
sys.path.insert(0, site + "/onnxruntime_genai/models")
runpy.run_path(site + "/onnxruntime_genai/models/builder.py", run_name="__main__")
"""


def gguf(model: Path, dtype: str = "float32") -> Path:
    """A GGUF file, its matrices in ``float32`` or ``float16``."""
    read_config(model)
    return _once(model, f"gguf-{dtype}", lambda out: write_gguf(model, out / _GGUF, dtype)) / _GGUF


def onnx(model: Path, environment: Environment) -> Path:
    """A folder of ONNX Runtime GenAI's builder in float32.

    The builder is that of the engine's environment and runs on our interpreter, which has torch.
    """

    def build(out: Path) -> None:
        site, scratch = environment.packages, out / "scratch"
        flags: list[str | Path] = ["-i", model, "-o", out, "-p", "fp32", "-e", "cpu", "-c", scratch]
        _call([sys.executable, "-c", _BUILD_ONNX, site, *flags])
        shutil.rmtree(scratch, ignore_errors=True)

    return _once(model, f"onnx-{_release(environment)}", build)


def openvino(model: Path, environment: Environment) -> Path:
    """A folder of OpenVINO's in float32, by way of a GGUF file in float16: it reads no other."""
    read_config(model)

    def build(out: Path) -> None:
        import numpy as np

        write_gguf(model, out / _GGUF, "float16")
        _call([environment.python, "-c", _SAVE_OPENVINO, out / _GGUF])
        np.savez(out / _EXACT, **_float32(model))
        _call([environment.python, LAUNCH, "spsbench.peers.openvino_model", out, out / _EXACT])
        for name in (_GGUF, _EXACT):
            (out / name).unlink()

    return _once(model, f"openvino-{_release(environment)}", build)


def _float32(model: Path) -> dict[str, Any]:
    """Every weight, and the frequencies of the rotation as transformers computes them."""
    import torch
    from safetensors.torch import load_file

    config = read_config(model)
    width = head_width(config)
    powers = torch.arange(0, width, 2, dtype=torch.float32) / width
    frequencies = 1.0 / config["rope_parameters"]["rope_theta"] ** powers
    state = load_file(model / WEIGHTS) | {"inverse frequencies": frequencies}
    return {name: tensor.float().numpy() for name, tensor in state.items()}


def _once(model: Path, form: str, build: Callable[[Path], None]) -> Path:
    """The folder of a model in a form, made if it is not there; a second process waits for the first."""
    folder = cache_dir() / "converted" / f"{_content(model)[:16]}-{form}-{_VERSION}"
    if not folder.is_dir():
        with locked(folder, f"{model.name} as {form}"):
            if not folder.is_dir():  # another process may have made it meanwhile
                _make(model, form, folder, build)
    return folder


def _make(model: Path, form: str, folder: Path, build: Callable[[Path], None]) -> None:
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    require_room(6 * size, f"{model.name} as {form}")  # bfloat16 to float32, and what is made on the way
    watcher().said(f"Converting {model.name} ({megabytes(size)}) to {form}, once")
    with written_whole(folder) as partial:
        build(partial)


def _content(model: Path) -> str:
    """A hash: other weights of the same name are converted again."""
    found = hashlib.sha256()
    files = [model / name for name in _HASHED] + sorted(model.glob("model-*.safetensors*"))
    if not (model / "config.json").is_file():
        raise UnavailableError(f"{model} has no config.json.", remedy="Give a Hugging Face folder.")
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                found.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _release(environment: Environment) -> str:
    """Of the packages of an environment that convert: another release converts again."""
    names = ("openvino_genai", "onnxruntime_genai")
    found = [path for name in names for path in environment.packages.glob(f"{name}-*.dist-info")]
    return found[0].name.removesuffix(".dist-info").partition("-")[2] if found else "unknown"


def _call(command: list[str | Path]) -> None:
    """Run a converter."""
    run(command, cache_dir() / "converted" / "log.txt", clean_environment())

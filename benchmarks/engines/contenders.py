"""Who takes part: our engines, and others whose interpreter or server was given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engines import conversion

_WORKERS = "benchmarks.engines.workers"
_PRELOADED = ("libiomp5.so", "libtcmalloc_minimal.so.4")


@dataclass(frozen=True)
class Contender:
    """An engine that can be started.

    Attributes:
        name: in the table.
        module: its worker.
        python: the interpreter that runs the worker.
        options: for the worker alone.
        environment: of its processes, on top of ours.
        convert: from a Hugging Face folder to what the engine reads.
    """

    name: str
    module: str
    python: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Path], Path] = lambda model: model


def ours(text: str, flags: Mapping[str, Any]) -> Contender:
    """``engine`` or ``engine:backend``, e.g. ``eager:torch``, by the names of ``spsbench run``."""
    engine, _, backend = text.partition(":")
    chosen = dict(flags) | {"engine": engine} | ({"backend": backend} if backend else {})
    return Contender(f"spsbench {text}", f"{_WORKERS}.ours", Path(sys.executable), {"flags": chosen})


def onnx(python: Path, work: Path) -> Contender:
    """ONNX Runtime GenAI."""
    return Contender(
        "ONNX Runtime GenAI",
        f"{_WORKERS}.onnx",
        python,
        convert=lambda model: conversion.onnx(model, work, python),
    )


def llama(server: Path, work: Path) -> Contender:
    """llama.cpp; the worker asks its server and runs on our own interpreter."""
    return Contender(
        "llama.cpp",
        f"{_WORKERS}.llama",
        Path(sys.executable),
        {"server": str(server)},
        convert=lambda model: conversion.gguf(model, work),
    )


def openvino(python: Path, work: Path) -> Contender:
    """OpenVINO GenAI."""
    return Contender(
        "OpenVINO GenAI",
        f"{_WORKERS}.openvino",
        python,
        convert=lambda model: conversion.openvino(model, work, python),
    )


def vllm(python: Path, cores: tuple[int, ...]) -> Contender:
    """vLLM's wheel for CPUs, which asks for two libraries to be loaded first. Without Intel's OpenMP, which
    comes with it, speculation crawls; tcmalloc is taken from the environment's ``lib`` too, if there."""
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)) or "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    libraries = [python.parent.parent / "lib" / name for name in _PRELOADED]
    environment["LD_PRELOAD"] = ":".join(str(library) for library in libraries if library.is_file())
    return Contender("vLLM", f"{_WORKERS}.vllm", python, environment=environment)

"""Who takes part: our engines, and others whose environment was given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.base.protocol import Load, Peer
from spsbench.base.records import Spec
from spsbench.parts.external.install import Environment
from spsbench.parts.external.registry import PeerKind, peer_in
from spsbench.parts.external.worker import Worker, WorkerCommand

ROOT = Path(__file__).resolve().parents[2]

_WORKERS = "benchmarks.engines.workers"
_TITLES = {
    "onnxruntime-genai": "ONNX Runtime GenAI",
    "llama-cpp": "llama.cpp",
    "openvino": "OpenVINO GenAI",
    "vllm": "vLLM",
}


def ours(text: str, flags: Mapping[str, Any]) -> PeerKind:
    """``engine`` or ``engine:backend``, e.g. ``eager:torch``, by the names of ``spsbench run``."""
    engine, _, backend = text.partition(":")
    chosen = dict(flags) | {"engine": engine} | ({"backend": backend} if backend else {})
    return from_here(f"spsbench {text}", "ours", {"flags": chosen})


def from_here(name: str, module: str, options: Mapping[str, Any]) -> PeerKind:
    """A worker of this folder, on our own interpreter."""
    argv = [sys.executable, "-m", f"{_WORKERS}.{module}"]

    def opened(load: Load, log: Path, paused: bool) -> Peer:
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(load.threads)}
        asked = replace(load, options=dict(options))
        return Worker(WorkerCommand(argv, log, variables, answer_s=600.0), asked, paused=paused)

    return PeerKind(name, opened)


def theirs(name: str, folder: Path) -> PeerKind:
    """A named engine that is installed in a folder."""
    return replace(peer_in(Environment(folder), Spec(name)), name=_TITLES[name])

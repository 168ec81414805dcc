"""Engines with a built-in worker: how each is started, what it reads, and its options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.peers import conversion
from spsbench.peers.environment import Environment
from spsbench.peers.launch import LAUNCH
from spsbench.peers.peer import Peer
from spsbench.peers.protocol import Load
from spsbench.peers.worker import Command, Worker
from spsbench.plugins import Options, settled
from spsbench.records import Spec

Variables = dict[str, str]

_PRELOADED = ("libiomp5.so", "libtcmalloc_minimal.so.4")
_HOW_TO_DRAFT = ("greedy", "probabilistic")


@dataclass(frozen=True)
class Named:
    """An engine with a built-in worker."""

    module: str
    converted: Callable[[Path, Environment], str]
    options: Options = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    python: Callable[[Environment], Path] = lambda environment: environment.python
    variables: Callable[[Environment, Load], Variables] = lambda environment, load: {}
    placed: Callable[[Environment], Variables] = lambda environment: {}

    def settled(self, spec: Spec, flag: str) -> Options:
        """Every option, as given or by default."""
        options = settled(spec.name, self.options, spec, flag)
        for name, choices in self.choices.items():
            if options[name] not in choices:
                raise UsageError(
                    f"{spec.name}:{name}={options[name]} is not valid.",
                    flag=flag,
                    remedy=f"Choose from {', '.join(choices)}.",
                )
        return options

    def open(self, environment: Environment, options: Options, load: Load, log: Path, paused: bool) -> Peer:
        """A peer with one setting; see ``registry.PeerKind``."""
        argv = [str(self.python(environment)), str(LAUNCH), f"spsbench.peers.workers.{self.module}"]
        given = dict(options) | dict(self.placed(environment)) | load.options
        variables = _common(load) | self.variables(environment, load)
        return Worker(Command(argv, log, variables), replace(load, options=given), paused=paused)


def _common(load: Load) -> Variables:
    """For every engine: none of our packages, nothing fetched, and as many threads as are asked for."""
    told = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    return told if load.threads is None else told | {"OMP_NUM_THREADS": str(load.threads)}


def _vllm_variables(environment: Environment, load: Load) -> Variables:
    """It asks for two libraries to be loaded first. Without Intel's OpenMP, which comes with it, speculation
    crawls; tcmalloc is taken from the environment's ``lib`` too, if there."""
    libraries = [environment.folder / "lib" / name for name in _PRELOADED]
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "LD_PRELOAD": ":".join(str(library) for library in libraries if library.is_file()),
    }


NAMED: Mapping[str, Named] = {
    "llama-cpp": Named(
        "llama_cpp",
        lambda model, environment: str(conversion.gguf(model)),
        options={"draft_sampling": "greedy"},
        choices={"draft_sampling": _HOW_TO_DRAFT},
        python=lambda environment: Path(sys.executable),
        placed=lambda environment: {"server": str(environment.server)},
    ),
    "onnxruntime-genai": Named(
        "onnxruntime_genai", lambda model, environment: str(conversion.onnx(model, environment))
    ),
    "openvino": Named("openvino", lambda model, environment: str(conversion.openvino(model, environment))),
    "vllm": Named(
        "vllm",
        lambda model, environment: str(model.absolute()),
        options={"draft_sample_method": "greedy", "mended": False, "eager": False},
        choices={"draft_sample_method": _HOW_TO_DRAFT},
        variables=_vllm_variables,
    ),
}
"""By their names on the command line; each has an entry in the catalogue."""

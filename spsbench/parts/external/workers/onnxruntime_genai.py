"""ONNX Runtime GenAI: tokens are handed out one by one, so the stamps are real.

Models are folders of its builder's (``conversion.onnx``); only ``onnxruntime_genai`` and numpy are needed.
``speculation=mtp``: the target's own prediction module drafts, through ``MtpGenerator``.
"""

from __future__ import annotations

import atexit
import importlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.base import (
    DRAFT,
    LONGEST_NGRAM,
    LOOKUP,
    LOOKUP_RULE,
    MOST_IN_FLIGHT,
    MTP,
    Answer,
    Ask,
    Described,
    Load,
    PeerError,
    Together,
    Wave,
    seed_field,
)
from spsbench.parts.external.messages import (
    ONNXRUNTIME_GENAI,
    ONNXRUNTIME_GENAI_MODULE,
    ONNXRUNTIME_GENAI_RULE,
)
from spsbench.parts.external.serving import (
    float32_only,
    require_processors,
    rule_of,
    serve,
    until_stop,
    usual_settings,
)
from spsbench.parts.external.waves import StepResult, stepped

_CONFIG = "genai_config.json"
_MODULE = "module"
_OF_A_MODULE = ("filename", "head_size", "inputs", "outputs", "num_hidden_layers", "num_key_value_heads")
"""What a decoder of its own takes from a module's description; the rest is as in the target's."""

_EVENTS = 64  # of one call
_PROCESSORS = ("repetition_penalty", "min_new_tokens", "grammar")
_PROCESSORS_OF_MODULES = _PROCESSORS[:2]  # "MtpGenerator does not support guided generation"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
HALF_LOGITS = "model-logits16.onnx"
"""The target's graph with its logits in float16: ``MtpGenerator`` takes no float32 ones on a CPU (0.18.0)."""


class OnnxRuntimeGenAI:
    """The target alone, with its draft as ``model.draft``, its module, or n-grams: see ``protocol.LOOKUP``.

    Several requests are for its ``Engine``, which takes no draft model; on a CPU it has static batches only:
    a batch is run to its end before others join, and a seed is refused ("A per-turn seed requires an Engine
    configured for dynamic batching", 0.18.0).
    """

    def __init__(self, load: Load) -> None:
        float32_only(load)
        self._genai: Any = importlib.import_module("onnxruntime_genai")
        self._numpy: Any = importlib.import_module("numpy")
        if load.speculation == MTP:
            _require_module(Path(load.target), self._genai)
        self._load = load
        config = json.loads((Path(load.target) / _CONFIG).read_text())
        self._vocab_size: int = config["model"]["vocab_size"]
        ends: int | list[int] = config["model"].get("eos_token_id", [])
        self._ends = {ends} if isinstance(ends, int) else set(ends)
        folder = Path(tempfile.mkdtemp())  # which it reads again where a request has a grammar
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        compose(load, folder)
        if load.in_flight > 1:
            batching = {"engine": {"static_batching": {"max_batch_size": load.in_flight}}}
            file = folder / _CONFIG
            file.write_text(json.dumps(json.loads(file.read_text()) | batching))
        self._model = self._genai.Model(str(folder))
        self._by_module = load.speculative and load.speculation == MTP
        if self._by_module:
            (folder / _MODULE).mkdir()
            compose_module(load, folder / _MODULE)
            self._module = self._genai.Model(str(folder / _MODULE))
        self._turns: dict[int, tuple[Any, int, list[int]]] = {}

    def describe(self) -> Described:
        rule = ONNXRUNTIME_GENAI_RULE
        limits = list(ONNXRUNTIME_GENAI)
        if self._load.speculation == LOOKUP:
            rule = LOOKUP_RULE
        if self._load.speculation == MTP:
            rule = rule_of(self._load, rule)
            limits += ONNXRUNTIME_GENAI_MODULE
        settings = usual_settings(self._load)
        del settings["sampler_order"]
        return Described(
            engine="ONNX Runtime GenAI",
            version=version("onnxruntime-genai"),
            vocab_size=self._vocab_size,
            rule=rule if self._load.speculative else None,
            settings=settings | {"prefix_cache": False},
            in_flight=None if self._load.speculative else MOST_IN_FLIGHT,
            limits=limits,
            processors=list(self._processors),
        )

    def generate(self, ask: Ask) -> Answer:
        """Alone and with a module the first token comes from the prefill, else from the first round."""
        if self._by_module:
            generator = self._genai.MtpGenerator(self._model, self._module, self._parameters(ask))
        else:
            generator = self._genai.Generator(self._model, self._parameters(ask))
        prompt = self._prompt(ask)
        started = time.perf_counter()
        generator.append_tokens(prompt)
        prefilled = time.perf_counter()
        ids: list[int] = []
        logprobs: list[float] = []
        shown = ask.logprobs and not self._load.speculative
        while not generator.is_done() and len(ids) < ask.max_new_tokens:
            row = generator.get_logits().reshape(-1, self._vocab_size)[-1] if shown else None
            generator.generate_next_token()
            ids.append(
                int(generator.get_sequence()[-1] if self._by_module else generator.get_next_tokens()[0])
            )
            if row is not None:
                logprobs.append(
                    float(row[ids[-1]] - row.max() - self._numpy.log(self._numpy.exp(row - row.max()).sum()))
                )
            if ids[-1] in ask.stop_ids:
                break
        ended = time.perf_counter()
        counts: dict[str, Any] = {"decoded": len(ids) - 1, "loops": len(ids) - 1}
        if self._load.speculative:
            stats = generator.get_stats() if self._by_module else generator.get_speculative_stats()
            loops = int(stats["rounds"])
            if self._load.speculation == LOOKUP:  # a step without a match is no round of its
                loops += int(stats["standard_fallback_steps"])
            counts = {"decoded": len(ids) - self._by_module, "loops": loops}
            counts["drafted"] = int(stats["draft_tokens_proposed"])
            counts["accepted"] = int(stats["draft_tokens_accepted"])
        return Answer(
            *until_stop(ids, ask),
            prefill_ms=1e3 * (prefilled - started),
            decode_ms=1e3 * (ended - prefilled),
            wall_ms=1e3 * (ended - started),
            logprobs=logprobs if shown else None,
            **counts,
        )

    def together(self, wave: Wave) -> Together:
        """Run static batches; see the class. A batch that fails ends its engine, so each has its own."""
        self._turns.clear()
        self._engine = self._genai.Engine(self._model)
        self._events = self._engine.create_event_buffer(_EVENTS)
        return stepped(wave, self)

    def add(self, number: int, ask: Ask) -> None:
        self._require_possible(ask)
        drawn = ask.sampling
        turn = self._genai.TurnOptions(request := self._engine.create_request())
        turn.set_max_generated_tokens(ask.max_new_tokens)
        turn.set_do_sample(not drawn.greedy)
        turn.set_repetition_penalty(drawn.repetition_penalty)
        turn.set_min_generated_tokens(drawn.min_new_tokens)
        if drawn.grammar is not None:
            turn.set_guidance("json_schema", drawn.grammar)
        if not drawn.greedy:
            turn.set_temperature(drawn.temperature)
            turn.set_top_k(drawn.top_k or self._vocab_size)
            turn.set_top_p(drawn.top_p)
        began = request.begin_turn(self._prompt(ask), turn)
        self._turns[number] = request, began, []

    def step(self) -> Iterator[StepResult]:
        flags = self._genai.EngineEventFlags
        for event in self._engine.run(self._events):
            number = next((n for n, (request, *_) in self._turns.items() if request is event.request), None)
            if number is None:
                continue
            ids = self._turns[number][2]
            if event.flags & flags.FAILED:
                yield number, ids, RuntimeError(f"its engine failed: {event.error_code}")
                continue
            if event.flags & flags.TOKEN:
                ids.append(int(event.token))
            if event.finish_reason == self._genai.FinishReason.EOS and len(self._ends) == 1:
                ids.extend(self._ends)  # which it keeps back
            yield number, ids, bool(event.flags & flags.TURN_FINISHED)

    def abort(self, number: int) -> None:
        request, began, _ = self._turns.pop(number)
        request.cancel_turn(began)

    def _prompt(self, ask: Ask) -> Any:
        return self._numpy.array(ask.prompt_ids, dtype=self._numpy.int32)

    @property
    def _processors(self) -> tuple[str, ...]:
        return _PROCESSORS if self._load.speculation != MTP else _PROCESSORS_OF_MODULES

    def _require_possible(self, ask: Ask) -> None:
        require_processors(ask.sampling, self._processors)
        if ask.sampling.min_new_tokens and not set(ask.stop_ids) <= self._ends:
            raise PeerError("cannot: its min_length bars the model's own end tokens alone")

    def _parameters(self, ask: Ask) -> Any:
        self._require_possible(ask)
        drawn = ask.sampling
        parameters = self._genai.GeneratorParams(self._model)
        options: dict[str, Any] = {"max_length": len(ask.prompt_ids) + ask.max_new_tokens}
        options |= {"do_sample": not drawn.greedy, "repetition_penalty": drawn.repetition_penalty}
        options["min_length"] = len(ask.prompt_ids) + drawn.min_new_tokens if drawn.min_new_tokens else 0
        if not ask.sampling.greedy:
            options |= {"temperature": ask.sampling.temperature, **seed_field("random_seed", ask.seed)}
            options |= {"top_k": ask.sampling.top_k, "top_p": ask.sampling.top_p}
            if ask.sampling.top_p < 1 and not ask.sampling.top_k:
                options["top_k"] = self._vocab_size  # with 0 it ignores top_p
        parameters.set_search_options(**options)
        if drawn.grammar is not None:
            parameters.set_guidance("json_schema", drawn.grammar)
        if self._load.speculative:
            least = int(self._load.options.get("min_adaptive_k", 0))
            adaptive = {"min_adaptive_k": least} if least else {}
            parameters.set_speculative_options(max_draft_tokens=self._load.k, **adaptive)
        return parameters


def compose(load: Load, folder: Path) -> None:
    """Write a configuration for these settings, above links to the models' own folders.

    Release 0.18 refuses ``..`` in a file name, so the models must lie beneath their configuration.
    """
    lookup = load.speculative and load.speculation == LOOKUP
    roles = {"target": Path(load.target)}
    if load.draft is not None and load.speculation == DRAFT:  # it refuses n-grams beside a draft model
        roles["draft"] = Path(load.draft)
    decoders = {}
    for role, source in roles.items():
        (folder / role).symlink_to(source.absolute(), target_is_directory=True)
        decoders[role] = _decoder(role, source, load.threads)
    config = json.loads((roles["target"] / _CONFIG).read_text())
    module = config["model"].pop("mtp", None)
    config["model"]["decoder"] = decoders["target"]
    if load.speculation == MTP:
        decoders["target"]["filename"] = f"target/{HALF_LOGITS}"
        config["model"]["mtp"] = _placed("target", module)
    if "draft" in decoders:
        config["model"]["draft"] = decoders["draft"]
        config["speculative"] = {"max_draft_tokens": load.k}
    if lookup:
        ngrams = {"ngram_size": int(load.options.get("ngram_size", LONGEST_NGRAM))}
        ngrams["ngram_chained_lookup"] = bool(load.options.get("ngram_chained_lookup", False))
        config["speculative"] = {"max_draft_tokens": load.k, **ngrams}
    _write(folder, config, roles["target"])


def compose_module(load: Load, folder: Path) -> None:
    """Write a configuration by which the target's prediction module is a model of its own."""
    source = Path(load.target)
    (folder / _MODULE).symlink_to(source.absolute(), target_is_directory=True)
    config = json.loads((source / _CONFIG).read_text())
    target = _decoder(_MODULE, source, load.threads)
    module = _placed(_MODULE, config["model"].pop("mtp"))
    config["model"]["decoder"] = target | {name: module[name] for name in _OF_A_MODULE}
    _write(folder, config, source)


def _write(folder: Path, config: dict[str, Any], source: Path) -> None:
    (folder / _CONFIG).write_text(json.dumps(config))
    for name in _TOKENIZER_FILES:
        content = json.loads((source / name).read_text())
        if "tokenizer_class" in content:  # it knows no name of transformers 5's
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / name).write_text(json.dumps(content))


def _decoder(role: str, source: Path, threads: int | None) -> dict[str, Any]:
    decoder = _placed(role, json.loads((source / _CONFIG).read_text())["model"]["decoder"])
    if threads is not None:
        decoder["session_options"] |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return decoder


def _placed(role: str, described: dict[str, Any]) -> dict[str, Any]:
    """A graph's description below a link of that name.

    Weights that target and module share are read twice: 0.18.0 loads no model that shares them on a CPU
    ("GetMemoryInfo for CPU should not be used").
    """
    own = {name: value for name, value in described.items() if name != "shared_initializers"}
    return own | {"filename": f"{role}/{own['filename']}"}


def _require_module(target: Path, genai: Any) -> None:
    if not hasattr(genai, "MtpGenerator"):
        raise ValueError("this release of ONNX Runtime GenAI has no MtpGenerator; 0.18.0 has")
    if not (target / HALF_LOGITS).is_file():
        why = "the builder of ONNX Runtime GenAI found no prediction module in the target"
        raise ValueError(f"{why}: it exports those of Qwen3_5ForConditionalGeneration and its MoE alone")


if __name__ == "__main__":
    serve(OnnxRuntimeGenAI)

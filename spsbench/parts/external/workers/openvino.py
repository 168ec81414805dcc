"""OpenVINO GenAI; float32 has to be asked for.

Models are folders in its own format. With arguments FOLDER EXACT.npz the module makes one exact instead
(``conversion.openvino``). Option ``speculation``: see ``protocol.LOOKUP``;
``assistant_confidence_threshold`` and ``max_ngram_size`` are its own: the first takes the place of K.
"""

from __future__ import annotations

import importlib
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spsbench.base import (
    DRAFT,
    LONGEST_NGRAM,
    LOOKUP,
    LOOKUP_RULE,
    MOST_IN_FLIGHT,
    Answer,
    Ask,
    Described,
    Load,
    Together,
    Wave,
)
from spsbench.parts.external.messages import OPENVINO, OPENVINO_RULE, OPENVINO_TOP_P
from spsbench.parts.external.serving import (
    PENALTIES,
    float32_only,
    lacking,
    require_processors,
    serve,
    until_stop,
    usual_settings,
)
from spsbench.parts.external.waves import stepped

_FLOAT32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
_PROCESSORS = ("min_p", *PENALTIES, "min_new_tokens", "grammar")
_ALL = 2**31 - 1  # its top-k that cuts nothing
_RULES = {DRAFT: OPENVINO_RULE, LOOKUP: LOOKUP_RULE}


class OpenVino:
    """A pipeline on the CPU, with a draft or without; that for several requests has another class."""

    def __init__(self, load: Load) -> None:
        float32_only(load)
        self._openvino: Any = importlib.import_module("openvino")
        self._numpy: Any = importlib.import_module("numpy")  # a script has no import of it
        self._genai: Any = importlib.import_module("openvino_genai")
        self._load = load
        properties: dict[str, Any] = dict(_FLOAT32)
        if load.threads is not None:
            properties["INFERENCE_NUM_THREADS"] = load.threads
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = load.prefix_cache
        scheduler.cache_size = 1  # GiB
        more: dict[str, Any] = {}
        if load.speculation == LOOKUP:
            more["prompt_lookup"] = load.speculative
        elif load.draft is not None:
            more["draft_model"] = self._genai.draft_model(load.draft, "CPU", **properties)
        self._handles: dict[int, tuple[Any, list[int]]] = {}
        self._requests = 0
        if load.in_flight == 1:
            more["scheduler_config"] = scheduler
            self._pipeline = self._genai.LLMPipeline(load.target, "CPU", **more, **properties)
        else:
            scheduler.max_num_seqs = load.in_flight
            self._pipeline = self._genai.ContinuousBatchingPipeline(
                load.target, scheduler, "CPU", properties | more
            )

    def describe(self) -> Described:
        model = self._openvino.Core().read_model(Path(self._load.target) / "openvino_model.xml")
        return Described(
            engine="OpenVINO GenAI",
            version=version("openvino-genai"),
            vocab_size=model.output(0).get_partial_shape()[-1].get_length(),
            rule=_RULES[self._load.speculation] if self._load.speculative else None,
            in_flight=MOST_IN_FLIGHT,
            # Its top_k comes first, which is the same law.
            settings=usual_settings(self._load) | {"top_p": OPENVINO_TOP_P},
            limits=list(OPENVINO),
            processors=list(_PROCESSORS),
        )

    def generate(self, ask: Ask) -> Answer:
        """Answer a request; it has one duration a target call, the first of them the prefill."""
        prompt = self._prompt(ask)
        config = self._config(ask)
        started = time.perf_counter()
        generated = self._pipeline.generate(prompt, config)
        wall_ms = 1e3 * (time.perf_counter() - started)
        ids, finish = until_stop([int(token) for token in generated.tokens[0]], ask)
        prefill_ms = float(generated.perf_metrics.get_ttft().mean)
        loops: int | None = len(ids) - 1
        if self._load.speculative:  # it counts none of prompt lookup
            metrics = getattr(generated, "extended_perf_metrics", None)
            loops = metrics and len(metrics.main_model_metrics.raw_metrics.m_durations) - 1
        return Answer(
            output_ids=ids,
            finish=finish,
            prefill_ms=prefill_ms,
            decode_ms=wall_ms - prefill_ms,
            wall_ms=wall_ms,
            decoded=len(ids) - 1,
            loops=loops,
        )

    def together(self, wave: Wave) -> Together:
        self._handles.clear()
        return stepped(wave, self)

    def add(self, number: int, ask: Ask) -> None:
        self._requests += 1
        handle = self._pipeline.add_request(self._requests, self._prompt(ask), self._config(ask))
        self._handles[number] = handle, []

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        self._pipeline.step()
        for number, (handle, ids) in list(self._handles.items()):
            while handle.can_read():
                (output,) = handle.read().values()
                ids += [int(token) for token in output.generated_ids]
            ended = handle.get_status().name != "RUNNING"
            if ended:
                del self._handles[number]
            yield number, ids, ended

    def abort(self, number: int) -> None:
        handle, _ = self._handles.pop(number)
        handle.cancel()

    def _prompt(self, ask: Ask) -> Any:
        return self._openvino.Tensor(self._numpy.array([ask.prompt_ids], dtype=self._numpy.int64))

    def _config(self, ask: Ask) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = ask.max_new_tokens, False
        config.stop_token_ids = set(ask.stop_ids)
        config.do_sample = not ask.sampling.greedy
        require_processors(ask.sampling, _PROCESSORS)
        for name in lacking(ask.sampling, ("grammar",)):  # releases of 2025 have no min_p
            setattr(config, name, getattr(ask.sampling, name))
        if ask.sampling.grammar is not None:
            config.structured_output_config = self._genai.StructuredOutputConfig(
                json_schema=ask.sampling.grammar
            )
        if config.do_sample:
            config.temperature, config.top_p = ask.sampling.temperature, ask.sampling.top_p
            config.top_k = ask.sampling.top_k or _ALL
            # Its own default is 0: all requests without a seed would be one draw.
            config.rng_seed = secrets.randbelow(1 << 31) if ask.seed is None else ask.seed
        if self._load.speculative:
            if threshold := self._load.options.get("assistant_confidence_threshold"):
                config.assistant_confidence_threshold = threshold  # excludes the other
            else:
                config.num_assistant_tokens = self._load.k
            if self._load.speculation == LOOKUP:
                config.max_ngram_size = self._load.options.get("max_ngram_size", LONGEST_NGRAM)
        return config


_XML = Path("openvino_model.xml")

Array = NDArray[Any]


def restore(folder: Path, exact: Mapping[str, Array]) -> None:
    """Put the float32 weights back into a model that OpenVINO saved in float16.

    Its reader of GGUF takes no float32, and what it saves has every constant in float16, the rotation's
    frequencies too. Each is replaced by the float32 array that it is the rounding of.
    """
    openvino: Any = importlib.import_module("openvino")
    known = {_content_key(array): array.astype(np.float32) for array in exact.values()}
    model = openvino.Core().read_model(folder / _XML)
    for convert in model.get_ordered_ops():
        rounded = _float16_constant(convert)
        if rounded is None:
            continue
        constant = openvino.opset13.constant(restored(rounded, known))
        for reader in convert.output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))
    part = Path("exact.xml")
    openvino.save_model(model, folder / part, compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (folder / part.with_suffix(suffix)).replace(folder / _XML.with_suffix(suffix))


def restored(rounded: Array, known: Mapping[tuple[Any, ...], Array]) -> Array:
    """The array in float32, in the same shape. Single numbers (1, 2, masks) stay as they were."""
    if rounded.size == 1:
        return rounded.astype(np.float32)
    if _content_key(rounded) not in known:
        raise ValueError(f"a constant of shape {rounded.shape} is none of the model's weights")
    return known[_content_key(rounded)].reshape(rounded.shape)


def _float16_constant(node: Any) -> Array | None:
    if node.get_type_name() != "Convert" or node.input_value(0).get_node().get_type_name() != "Constant":
        return None
    data: Array = node.input_value(0).get_node().data
    return data if data.dtype == np.float16 else None


def _content_key(array: Array) -> tuple[Any, ...]:
    return tuple(n for n in array.shape if n > 1), hash(array.astype(np.float16).tobytes())


if __name__ == "__main__":
    if sys.argv[1:]:
        restore(Path(sys.argv[1]), np.load(sys.argv[2]))
    else:
        serve(OpenVino)

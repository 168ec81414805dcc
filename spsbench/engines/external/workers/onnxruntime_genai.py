"""ONNX Runtime GenAI: tokens are handed out one by one, so the stamps are real.

Models are folders of its builder's (``conversion.onnx``); only ``onnxruntime_genai`` and numpy are needed.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.engines.external.protocol import Answer, Ask, Described, Load
from spsbench.engines.external.serving import (
    float32_only,
    require_processors,
    serve,
    until_stop,
    usual_settings,
)

_CONFIG = "genai_config.json"
_PROCESSORS = ("repetition_penalty", "min_new_tokens", "grammar")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class OnnxRuntimeGenAI:
    """The target alone, or with its draft as ``model.draft``."""

    def __init__(self, load: Load) -> None:
        float32_only(load)
        self._genai: Any = importlib.import_module("onnxruntime_genai")
        self._load = load
        config = json.loads((Path(load.target) / _CONFIG).read_text())
        self._vocab_size: int = config["model"]["vocab_size"]
        with tempfile.TemporaryDirectory() as folder:
            compose(load, Path(folder))
            self._model = self._genai.Model(folder)

    def describe(self) -> Described:
        rule = "greedy: sample-and-compare; sampled: not documented"
        settings = usual_settings(self._load)
        del settings["sampler_order"]
        return Described(
            engine="ONNX Runtime GenAI",
            version=version("onnxruntime-genai"),
            vocab_size=self._vocab_size,
            rule=rule if self._load.speculative else None,
            settings=settings,
            limits=[
                "With top_k 0 it ignores top_p, so it is asked for a top-k of the whole vocabulary.",
                "Its order of temperature, top-k and top-p is not documented, and not reported here.",
                "Drafted and accepted tokens count the whole last round, also after the stop token.",
            ],
            processors=list(_PROCESSORS),
        )

    def generate(self, ask: Ask) -> Answer:
        """Alone, the first token comes of the prefill; with a draft, of the first round as all others."""
        import numpy as np

        generator = self._genai.Generator(self._model, self._parameters(ask))
        prompt = np.array(ask.prompt_ids, dtype=np.int32)
        started = time.perf_counter()
        generator.append_tokens(prompt)
        prefilled = time.perf_counter()
        ids: list[int] = []
        while not generator.is_done() and len(ids) < ask.max_new_tokens:
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            if ids[-1] in ask.stop_ids:
                break
        ended = time.perf_counter()
        counts: dict[str, Any] = {"decoded": len(ids) - 1, "loops": len(ids) - 1}
        if self._load.speculative:
            told = generator.get_speculative_stats()
            counts = {"decoded": len(ids), "loops": int(told["rounds"])}
            counts["drafted"] = int(told["draft_tokens_proposed"])
            counts["accepted"] = int(told["draft_tokens_accepted"])
        return Answer(
            *until_stop(ids, ask),
            prefill_ms=1e3 * (prefilled - started),
            decode_ms=1e3 * (ended - prefilled),
            wall_ms=1e3 * (ended - started),
            **counts,
        )

    def _parameters(self, ask: Ask) -> Any:
        drawn = ask.sampling
        require_processors(drawn, _PROCESSORS)
        parameters = self._genai.GeneratorParams(self._model)
        options: dict[str, Any] = {"max_length": len(ask.prompt_ids) + ask.max_new_tokens}
        options |= {"do_sample": not drawn.greedy, "repetition_penalty": drawn.repetition_penalty}
        options["min_length"] = len(ask.prompt_ids) + drawn.min_new_tokens if drawn.min_new_tokens else 0
        if not ask.sampling.greedy:
            options |= {"temperature": ask.sampling.temperature, "random_seed": ask.seed}
            options |= {"top_k": ask.sampling.top_k, "top_p": ask.sampling.top_p}
            if ask.sampling.top_p < 1 and not ask.sampling.top_k:
                options["top_k"] = self._vocab_size  # with 0 it ignores top_p
        parameters.set_search_options(**options)
        if drawn.grammar is not None:
            parameters.set_guidance("json_schema", drawn.grammar)
        if self._load.speculative:
            parameters.set_speculative_options(max_draft_tokens=self._load.k)
        return parameters


def compose(load: Load, folder: Path) -> None:
    """Write a configuration for these settings, above links to the models' own folders.

    Release 0.18 refuses ``..`` in a file name, so the models must lie beneath their configuration.
    """
    roles = {"target": Path(load.target)} | ({} if load.draft is None else {"draft": Path(load.draft)})
    decoders = {}
    for role, source in roles.items():
        (folder / role).symlink_to(source.absolute(), target_is_directory=True)
        decoders[role] = _decoder(role, source, load.threads)
    config = json.loads((roles["target"] / _CONFIG).read_text())
    config["model"]["decoder"] = decoders["target"]
    if "draft" in decoders:
        config["model"]["draft"] = decoders["draft"]
        config["speculative"] = {"max_draft_tokens": load.k}
    (folder / _CONFIG).write_text(json.dumps(config))
    for name in _TOKENIZER_FILES:
        content = json.loads((roles["target"] / name).read_text())
        if "tokenizer_class" in content:  # it knows no name of transformers 5's
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / name).write_text(json.dumps(content))


def _decoder(role: str, source: Path, threads: int | None) -> dict[str, Any]:
    decoder: dict[str, Any] = json.loads((source / _CONFIG).read_text())["model"]["decoder"]
    decoder["filename"] = f"{role}/{decoder['filename']}"
    if threads is not None:
        decoder["session_options"] |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return decoder


if __name__ == "__main__":
    serve(OnnxRuntimeGenAI)

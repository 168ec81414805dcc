"""ONNX Runtime GenAI: tokens are handed out one by one, so the stamps are real.

Models are folders of its builder's (``conversion.onnx``); only ``onnxruntime_genai`` and numpy are needed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.engines.messages import Answer, Loaded, Request, Settings
from benchmarks.engines.serving import serve

_CONFIG = "genai_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class Onnx:
    """The target alone, or with its draft as ``model.draft``."""

    def __init__(self, settings: Settings) -> None:
        self._genai: Any = importlib.import_module("onnxruntime_genai")
        self._settings = settings
        self._model = self._genai.Model(str(_composed(settings)))

    def describe(self) -> Loaded:
        return Loaded(version("onnxruntime-genai"))

    def generate(self, request: Request) -> Answer:
        """Alone, the first token comes of the prefill; with a draft, of the first round as all others."""
        import numpy as np

        parameters = self._genai.GeneratorParams(self._model)
        longest = len(request.prompt_ids) + request.max_new_tokens
        parameters.set_search_options(max_length=longest, do_sample=False)
        if self._settings.speculative:
            parameters.set_speculative_options(max_draft_tokens=self._settings.k)
        generator = self._genai.Generator(self._model, parameters)
        prompt = np.array(request.prompt_ids, dtype=np.int32)
        started = time.perf_counter()
        generator.append_tokens(prompt)
        prefilled = time.perf_counter()
        ids: list[int] = []
        while not generator.is_done() and len(ids) < request.max_new_tokens:
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            if ids[-1] in request.stop_ids:
                break
        ended = time.perf_counter()
        decoded = loops = len(ids) - 1
        if self._settings.speculative:
            decoded, loops = len(ids), int(generator.get_speculative_stats()["rounds"])
        return Answer(tuple(ids), 1e3 * (prefilled - started), 1e3 * (ended - prefilled), decoded, loops)


def _composed(settings: Settings) -> Path:
    """A folder with a configuration for these settings, above links to the models' own files.

    Release 0.18 refuses ``..`` in a file name, so the models must lie beneath their configuration.
    """
    roles = {"target": Path(settings.target)}
    if settings.draft is not None:
        roles["draft"] = Path(settings.draft)
    folder = roles["target"].parent / f"onnx-{'-'.join(roles)}-{settings.threads}-threads"
    shutil.rmtree(folder, ignore_errors=True)
    decoders: dict[str, dict[str, Any]] = {}
    for role, source in roles.items():
        (folder / role).mkdir(parents=True)
        for file in source.iterdir():
            if file.is_file():
                os.link(file, folder / role / file.name)
        decoder = json.loads((source / _CONFIG).read_text())["model"]["decoder"]
        decoder["filename"] = f"{role}/{decoder['filename']}"
        decoder["session_options"] |= {
            "intra_op_num_threads": settings.threads,
            "inter_op_num_threads": 1,
        }
        decoders[role] = decoder
    config = json.loads((roles["target"] / _CONFIG).read_text())
    config["model"]["decoder"] = decoders["target"]
    if "draft" in decoders:
        config["model"]["draft"] = decoders["draft"]
        config["speculative"] = {"max_draft_tokens": settings.k}
    (folder / _CONFIG).write_text(json.dumps(config))
    for name in _TOKENIZER_FILES:
        content = json.loads((roles["target"] / name).read_text())
        if "tokenizer_class" in content:  # it knows no name of transformers 5's
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / name).write_text(json.dumps(content))
    return folder


if __name__ == "__main__":
    serve(Onnx)

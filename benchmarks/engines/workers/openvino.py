"""OpenVINO GenAI; float32 has to be asked for. Models are folders of its own (``conversion.openvino``)."""

from __future__ import annotations

import importlib
import time
from importlib.metadata import version
from typing import Any

from benchmarks.engines.messages import Answer, Loaded, Request, Settings
from benchmarks.engines.serving import serve, until_stop

_FLOAT32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


class OpenVino:
    """A pipeline on the CPU, with a draft or without; its prefix cache is off."""

    def __init__(self, settings: Settings) -> None:
        self._openvino: Any = importlib.import_module("openvino")
        self._genai: Any = importlib.import_module("openvino_genai")
        self._settings = settings
        properties = _FLOAT32 | {"INFERENCE_NUM_THREADS": settings.threads}
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 1  # GiB
        more: dict[str, Any] = {"scheduler_config": scheduler}
        if settings.draft is not None:
            more["draft_model"] = self._genai.draft_model(settings.draft, "CPU", **properties)
        self._pipeline = self._genai.LLMPipeline(settings.target, "CPU", **more, **properties)

    def describe(self) -> Loaded:
        return Loaded(version("openvino-genai"))

    def generate(self, request: Request) -> Answer:
        import numpy as np

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = request.max_new_tokens, False
        config.stop_token_ids = set(request.stop_ids)
        if self._settings.speculative:
            config.num_assistant_tokens = self._settings.k
        prompt = self._openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        started = time.perf_counter()
        found = self._pipeline.generate(prompt, config)
        wall_ms = 1e3 * (time.perf_counter() - started)
        ids = until_stop([int(token) for token in found.tokens[0]], request)
        prefill_ms = float(found.perf_metrics.get_ttft().mean)
        loops = len(ids) - 1
        if self._settings.speculative:
            # One duration a target call, the first of them the prefill. Its count of accepted tokens
            # leaves the last call out.
            calls = found.extended_perf_metrics.main_model_metrics.raw_metrics.m_durations
            loops = len(calls) - 1
        return Answer(ids, prefill_ms, wall_ms - prefill_ms, len(ids) - 1, loops)


if __name__ == "__main__":
    serve(OpenVino)

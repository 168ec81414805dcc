"""Files as other tools write them: shapes from their sources, numbers made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BENCH: dict[str, Any] = {
    "model_id": "big",
    "request_throughput": 1.5,
    "completed": 4,
    "total_output_tokens": 900,
    "spec_decode_num_drafts": 300,
    "spec_decode_draft_tokens": 900,
    "spec_decode_accepted_tokens": 540,
    "spec_decode_acceptance_length": 2.8,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.6, 0.4],
    "generated_texts": ["a", "b"],
}


def stats(kept: list[int]) -> dict[str, Any]:
    """vLLM's record of a request at K = 3."""
    loops, accepted = sum(kept), sum(number * count for number, count in enumerate(kept))
    return {
        "acceptance_histogram": kept,
        "num_spec_steps": loops,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": 3 * loops,
        "num_spec_tokens": 3,
    }


def response(kept: list[int], **more: Any) -> dict[str, Any]:
    """A response with ``--per-request-spec-decode-metrics summary``."""
    found = stats(kept)
    tokens = found["num_spec_steps"] + found["num_accepted_draft_tokens"] + 1
    choice = {"index": 0, "text": "some text"}
    return {
        "id": "cmpl-1",
        "model": "big",
        "choices": [choice],
        "usage": {"completion_tokens": tokens},
        "metrics": {"speculative_decoding": found},
        **more,
    }


def aiperf(kept: list[int], category: str = "coding", phase: str = "profiling") -> dict[str, Any]:
    """A line of ``profile_export.jsonl``."""
    found = stats(kept)
    histogram = {str(number): count for number, count in enumerate(kept) if count}
    return {
        "metadata": {"session_num": 0, "benchmark_phase": phase, "source_kind": category},
        "metrics": {"output_sequence_length": {"value": 100, "unit": "tokens"}},
        "spec_decode_acceptance": found | {"engine": "vllm", "acceptance_histogram": histogram},
        "error": None,
    }


def guidellm(*asked: Mapping[str, Any], output: str | None = " and so on") -> dict[str, Any]:
    """``benchmarks.json`` with a request for each body."""
    requests = [{"request_args": json.dumps({"body": body}), "output": output} for body in asked]
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "benchmarks": [{"requests": {"successful": requests, "errored": [], "incomplete": []}}],
    }


def guidellm_told(*kept: list[int], tokens: int | None = None) -> dict[str, Any]:
    """``benchmarks.json`` of version 2 whose requests have vLLM's record as it came; None has none."""
    found = guidellm(*({"prompt": "Once", "model": "big"} for _ in kept))
    (benchmark,) = found["benchmarks"]
    for request, own in zip(benchmark["requests"]["successful"], kept, strict=True):
        told = response(own)
        count = told["usage"]["completion_tokens"] if tokens is None else tokens
        request |= {"response_metrics": told["metrics"], "output_metrics": {"text_tokens": count}}
    return found


SGLANG_BENCH: dict[str, Any] = {
    "backend": "sglang",
    "request_rate": "inf",
    "max_concurrency": 4,
    "completed": 256,
    "total_output_tokens": 51200,
    "total_output_tokens_retokenized": 51120,
    "request_throughput": 3.07,
    "accept_length": 2.9,
    "server_info": {"model_path": "big", "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4},
}


def sglang_details(kept: list[int], **changes: Any) -> dict[str, Any]:
    """SGLang's record of a request at K = 3, as 0.5.23 writes it."""
    loops, correct = sum(kept), sum(number * count for number, count in enumerate(kept))
    return {
        "spec_accept_rate": correct / (3 * loops),
        "spec_accept_length": (loops + correct + 1) / loops,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": 3 * loops,
        "spec_verify_ct": loops,
        "spec_correct_drafts_histogram": kept,
        **changes,
    }


def sglang(details: Any, tokens: int | None = None) -> dict[str, Any]:
    """An answer of SGLang's OpenAI API with its extension."""
    return {
        "model": "big",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}],
        "usage": {} if tokens is None else {"completion_tokens": tokens},
        "sglext": {"spec_tokens_details": details},
    }


def aiperf_summary(kept: Mapping[str, int] | None, mean: float | None, **changes: Any) -> dict[str, Any]:
    """``profile_export_aiperf.json``: a histogram over all loops, and the mean of requests."""
    pooled = {} if kept is None else {"pooled_spec_decode_acceptance_histogram": dict(kept)}
    told = {} if mean is None else {"spec_decode_acceptance_length": {"unit": "ratio", "avg": mean}}
    return {"aiperf_version": "0.13.0", "input_config": {}, **told, **pooled, **changes}


SPEED_BENCH: dict[str, Any] = {
    "config": {"model": None},
    "summary": [],
    "results": [
        {
            "ok": number != 3,
            "category": ("coding", "math")[number % 2],
            "completion_tokens": 100,
            "draft_n": 80,
            "draft_n_accepted": 40 + number,
        }
        for number in range(20)
    ],
}


def per_position(ahead: list[int], tokens: int | None = None) -> dict[str, Any]:
    """A line of SpecDecode-Bench: at each token the length of a loop's output."""
    count = len(ahead) + 1 if tokens is None else tokens
    return {
        "id": "1",
        "prompt_token_ids": [1, 2],
        "generated_token_ids": [3] * count,
        "acc_eagle": {"acc_len": [*(kept + 1 for kept in ahead), 1]},
    }


def written(path: Path, *rows: Any, indent: int | None = None) -> Path:
    """The rows as lines, or one of them as a document over several lines."""
    path.write_text("\n".join(json.dumps(row, indent=indent) for row in rows) + "\n")
    return path

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

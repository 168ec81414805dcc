"""vLLM's server. Names of fields as in 0.32.0 (``entrypoints/openai/completion/protocol.py``)."""

from __future__ import annotations

import uuid
from typing import Any

from spsbench.peers.dialects.dialect import Counters, Heard, decimal, part, sampler_fields, token_ids, whole
from spsbench.peers.protocol import SAMPLER_ORDER, Answer, Ask, Described
from spsbench.peers.serving import until_stop

_MOST_SEED = 2**63


class Vllm:
    """``/v1/completions`` with token ids in and out."""

    path = "/v1/completions"
    counters = Counters(
        "vllm:generation_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    )

    def __init__(self, model: str, version: str) -> None:
        self._model = model
        self.described = Described(
            engine="vLLM",
            version=version,
            settings={"prefix_cache": False, "sampler_order": SAMPLER_ORDER},
            limits=["It does not say by which rule it keeps drafted tokens, nor in what precision it runs."],
        )

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        """See ``Dialect.body``. Its own salt keeps each request out of the prefix cache; with
        ``ignore_eos`` nothing but ``stop_token_ids`` ends the output."""
        return {
            "model": self._model,
            "prompt": ask.prompt_ids,
            "max_tokens": ask.max_new_tokens,
            **sampler_fields(ask.sampling),
            "seed": ask.seed % _MOST_SEED,
            "stop_token_ids": ask.stop_ids,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "return_token_ids": True,
            "cache_salt": uuid.uuid4().hex,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }

    def answer(self, found: dict[str, Any], ask: Ask) -> Answer:
        """See ``Dialect.answer``. Times are there with ``--enable-per-request-metrics``."""
        ids = token_ids(part(found, "choices", 0, "token_ids"), "choices[0].token_ids")
        stopped_by = whole(part(found, "choices", 0, "stop_reason"))
        if stopped_by is not None and ids[-1:] != [stopped_by]:
            ids = [*ids, stopped_by]
        ids, finish = until_stop(ids, ask)
        metrics = found.get("metrics")
        counts = part(metrics, "speculative_decoding")
        told = part(counts, "per_step_accepted")
        steps = None if told is None else token_ids(told, "per_step_accepted")
        decode_ms = decimal(part(metrics, "generation_time_ms"))
        return Answer(
            ids,
            finish,
            prefill_ms=decimal(part(metrics, "time_to_first_token_ms")),
            decode_ms=decode_ms,
            decoded=None if decode_ms is None else len(ids) - 1,
            drafted=whole(part(counts, "num_draft_tokens")),
            accepted=whole(part(counts, "num_accepted_draft_tokens")),
            loops=None if steps is None else len(steps),
            accepted_per_loop=steps,
        )

    def heard(self, event: dict[str, Any]) -> Heard:
        """See ``Dialect.heard``. The ids of an event are those that it adds."""
        ids = part(event, "choices", 0, "token_ids")
        counts = part(event, "metrics", "speculative_decoding")
        return Heard(
            text=bool(ids) or bool(part(event, "choices", 0, "text")),
            tokens=whole(part(event, "usage", "completion_tokens")),
            added=len(ids) if isinstance(ids, list) else None,
            drafted=whole(part(counts, "num_draft_tokens")),
            accepted=whole(part(counts, "num_accepted_draft_tokens")),
        )

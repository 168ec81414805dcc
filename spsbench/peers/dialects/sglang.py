"""SGLang's server. Names of fields by its sources of 2026 (``srt/sampling/sampling_params.py``,
``srt/managers/tokenizer_manager.py``); it was not run. Older versions count less."""

from __future__ import annotations

from typing import Any

from spsbench.peers.asking import request_seed
from spsbench.peers.dialects.dialect import Counters, Heard, part, sampler_fields, token_ids, whole
from spsbench.peers.peer import PeerError
from spsbench.peers.protocol import Answer, Ask, Described, shortened
from spsbench.peers.serving import until_stop


class Sglang:
    """``/generate`` with token ids in and out."""

    path = "/generate"
    counters: Counters | None = None

    def __init__(self, info: dict[str, Any]) -> None:
        disabled = info.get("disable_radix_cache")
        prefix_cache = None if disabled is None else not disabled
        self.described = Described(
            engine="SGLang",
            version=str(info.get("version", "unknown")),
            settings={
                "dtype": info.get("dtype"),
                "kv_dtype": info.get("kv_cache_dtype"),
                "prefix_cache": prefix_cache,
                "speculative_algorithm": info.get("speculative_algorithm"),
            },
            limits=[
                "It does not say by which rule it keeps drafted tokens.",
                "It uses a request's seed only if it was started with --enable-deterministic-inference.",
                *(["A prompt that was seen before is not read again."] if prefix_cache else []),
            ],
        )

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        """See ``Dialect.body``. With ``ignore_eos`` nothing but ``stop_token_ids`` ends the output."""
        return {
            "input_ids": ask.prompt_ids,
            "sampling_params": {
                "max_new_tokens": ask.max_new_tokens,
                **sampler_fields(ask.sampling),
                "sampling_seed": request_seed(ask.seed),
                "stop_token_ids": ask.stop_ids,
                "ignore_eos": True,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
            "stream": stream,
        }

    def answer(self, found: dict[str, Any], ask: Ask) -> Answer:
        """See ``Dialect.answer``."""
        reason = part(found, "meta_info", "finish_reason")
        if part(found, "meta_info", "finish_reason", "type") == "abort":
            raise PeerError(f"it aborted the request: {shortened(str(reason.get('message')), 200)}")
        ids = token_ids(found.get("output_ids"), "output_ids")
        matched = whole(part(found, "meta_info", "finish_reason", "matched"))
        if matched is not None and ids[-1:] != [matched]:
            ids = [*ids, matched]
        ids, finish = until_stop(ids, ask)
        meta = found.get("meta_info")
        return Answer(
            ids,
            finish,
            loops=whole(part(meta, "spec_verify_ct")) or None,
            drafted=whole(part(meta, "spec_num_proposed_drafts")),
            accepted=whole(part(meta, "spec_num_correct_drafts")),
        )

    def heard(self, event: dict[str, Any]) -> Heard:
        """See ``Dialect.heard``."""
        meta = event.get("meta_info")
        tokens = whole(part(meta, "completion_tokens"))
        return Heard(
            text=bool(tokens),
            tokens=tokens,
            drafted=whole(part(meta, "spec_num_proposed_drafts")),
            accepted=whole(part(meta, "spec_num_correct_drafts")),
        )

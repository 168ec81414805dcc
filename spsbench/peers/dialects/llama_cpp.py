"""llama.cpp's ``llama-server``. Names of fields as in build 11434 (``tools/server/server-task.cpp``)."""

from __future__ import annotations

from typing import Any

from spsbench.peers.dialects.dialect import Counters, Heard, decimal, part, token_ids, whole
from spsbench.peers.peer import PeerError
from spsbench.peers.protocol import LENGTH, SAMPLER_ORDER, STOP, Answer, Ask, Described
from spsbench.peers.serving import until_stop

_SEEDS = 2**32 - 1  # the last one stands for a random seed


class LlamaCpp:
    """``/completion`` with token ids in and out, times and counts with every answer."""

    path = "/completion"
    counters = Counters(
        "llamacpp:tokens_predicted_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    )

    def __init__(self, props: dict[str, Any], vocab_size: int | None) -> None:
        self.described = Described(
            engine="llama.cpp",
            version=str(props.get("build_info", "unknown")),
            vocab_size=vocab_size,
            settings={"prefix_cache": False, "sampler_order": SAMPLER_ORDER},
            limits=[
                "It does not say by which rule it keeps drafted tokens, nor in what precision its keys and "
                "values are.",
                "Its own EOS always ends an output, unless there are no stop tokens at all: then EOS is made "
                "impossible, which is another distribution.",
            ],
        )

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        """See ``Dialect.body``. Samplers that are not listed do not run, and they run in this order."""
        drawn = ask.sampling
        chain: dict[str, Any] = {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
        if not drawn.greedy:
            chain = {
                "samplers": ["temperature", "top_k", "top_p"],
                "temperature": drawn.temperature,
                "top_k": drawn.top_k,
                "top_p": drawn.top_p,
            }
        return {
            **chain,
            "prompt": ask.prompt_ids,
            "n_predict": ask.max_new_tokens,
            "stop": ask.stop,
            "ignore_eos": not ask.stop_ids,
            "seed": ask.seed % _SEEDS,
            "min_p": 0.0,
            "typical_p": 1.0,
            "xtc_probability": 0.0,
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "dry_multiplier": 0.0,
            "min_keep": 0,
            "return_tokens": True,
            "cache_prompt": False,
            "stream": stream,
        }

    def answer(self, found: dict[str, Any], ask: Ask) -> Answer:
        """See ``Dialect.answer``. The token that ended the output is among ``tokens``, or counted alone."""
        written = token_ids(found.get("tokens"), "tokens")
        if found.get("truncated"):
            raise PeerError("its context is too short for the request: start it with a larger -c")
        ids, finish = until_stop(written, ask)
        timings = found.get("timings")
        predicted = whole(part(timings, "predicted_n"))
        ended = found.get("stop_type") in ("eos", "word")
        hidden = finish == LENGTH and ended and predicted is not None and predicted > len(written)
        return Answer(
            ids,
            STOP if hidden else finish,
            hidden_stop=hidden,
            prefill_ms=decimal(part(timings, "prompt_ms")),
            decode_ms=decimal(part(timings, "predicted_ms")),
            decoded=None if predicted is None else predicted - 1,  # the prefill gives the first
            drafted=whole(part(timings, "draft_n")),
            accepted=whole(part(timings, "draft_n_accepted")),
        )

    def heard(self, event: dict[str, Any]) -> Heard:
        """See ``Dialect.heard``. Tokens that end within a character bring no separate event, so the
        count of all is what holds."""
        timings = event.get("timings")
        return Heard(
            text=not event.get("stop") and bool(event.get("tokens")),
            tokens=whole(event.get("tokens_predicted")),
            drafted=whole(part(timings, "draft_n")),
            accepted=whole(part(timings, "draft_n_accepted")),
        )

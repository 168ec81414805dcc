"""What one kind of server is asked, and how its answers are read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from spsbench.base import protocol
from spsbench.parts.external import messages
from spsbench.parts.external.serving import PENALTIES, require_processors, until_stop
from spsbench.parts.external.workers import llama_cpp


class Texts(Protocol):
    """A tokenizer, as far as a server of text needs it."""

    def text(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, without those that begin a prompt."""


@runtime_checkable
class Conversations(Texts, Protocol):
    """A tokenizer that knows what was asked before a chat template made a prompt of it."""

    def asked(self, ids: list[int]) -> dict[str, Any]:
        """What a request of chat holds of a prompt: messages, tools and variables of the template."""


class FileTexts:
    """The ``tokenizer.json`` of a model's folder; read when it is first needed."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def texts_in(folder: str) -> Texts | None:
    """The tokenizer of a Hugging Face folder; None where it has none of that form."""
    file = Path(folder) / "tokenizer.json"
    return FileTexts(file) if folder and file.is_file() else None


@dataclass(frozen=True, slots=True)
class Heard:
    """What one event of a stream says. None wherever it does not.

    Attributes:
        said: the text that it adds.
        finish: why the output ended, in the server's word.
        cached: prompt tokens that the server had read before.
        unspoken: tokens of a thought that the server counts and, unless it also says them, does not stream.
        thought: whether it adds text of a thought.
        unstreamed: tokens that were counted and did not come.
        retokenised: ``tokens`` are those of all text, tokenized again.
    """

    text: bool
    tokens: int | None = None
    added: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    said: str = ""
    finish: str | None = None
    cached: int | None = None
    unspoken: int | None = None
    thought: bool = False
    unstreamed: int = 0
    retokenised: bool = False


def require_ended(finish: Any, last: Mapping[str, Any] | None = None) -> None:
    """Refuse an answer that did not come to its end: it is a part of one, however well formed.

    Args:
        last: what a stream said last; it may tell why.
    """
    if finish is None:
        shown = f" behind {protocol.shortened(json.dumps(last), 200)}" if last else ""
        raise protocol.PeerError(f"its answer ends without a finish_reason: it was cut{shown}")
    if finish not in (protocol.STOP, protocol.LENGTH):
        raise protocol.PeerError(f"it ended its answer with {protocol.shortened(str(finish))}")


def part(content: Any, *names: str | int) -> Any:
    """The value at a path of names and places; None where the path ends early."""
    value: Any = content
    for name in names:
        if isinstance(name, str):
            value = value.get(name) if isinstance(value, Mapping) else None
        else:
            value = value[name] if isinstance(value, list) and len(value) > name else None
    return value


def choice(content: Any) -> Any:
    """The output that was asked for, without others that a server sends beside it; None for none."""
    choices = part(content, "choices")
    rows = [row for row in choices if isinstance(row, Mapping)] if isinstance(choices, list) else []
    return next((row for row in rows if row.get("index") in (0, None)), None)


def whole(value: Any) -> int | None:
    """A count, or None for anything else."""
    return value if type(value) is int and 0 <= value < protocol.LARGEST else None


def decimal(value: Any) -> float | None:
    """A number, or None for anything else."""
    return float(value) if type(value) in (int, float) and abs(value) < protocol.LARGEST else None


def characters(text: str) -> str:
    """A text whose surrogates are joined, where events parted a pair, or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def token_ids(value: Any, where: str) -> list[int]:
    if isinstance(value, list) and all(type(each) is int for each in value):
        return value
    raise protocol.PeerError(f"{where} is {protocol.shortened(repr(value))} and no list of token ids")


def logprobs(value: Any, ids: list[int], ask: protocol.Ask) -> list[float] | None:
    """The output's log-probabilities, one a token; None where not requested or not numbers."""
    values = [decimal(each) for each in value[: len(ids)]] if ask.logprobs and isinstance(value, list) else []
    known = [each for each in values if each is not None]
    return known if known and len(known) == len(values) else None


class Dialect:
    """One kind of server, for one model that it serves.

    ``counters`` name in ``/metrics`` the tokens written, drafted and accepted in all of its requests, where
    that is known; ``figures`` say where a response holds fields of ``Answer``, ``written`` where an event of
    a stream holds the tokens so far, ``read`` where it has the prompt's tokens, ``cached`` those of them that
    were not read again. ``ends`` are the server's own words for an output that came to its end.
    """

    described: protocol.Described
    prefix_cache = False
    takes_ids = True
    path = "/v1/completions"
    counters: tuple[str, ...] = ()
    figures: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    written: tuple[str, ...] = ("usage", "completion_tokens")
    cached: tuple[str, ...] = ("usage", "prompt_tokens_details", "cached_tokens")
    read: tuple[str, ...] = ("usage", "prompt_tokens")
    ends: ClassVar[Mapping[str, str]] = {}

    def keep_prompts(self, keep: bool) -> None:
        """Let a prompt's keys and values outlive its request, where requests say so."""
        described = self.described
        if described.settings.get("prefix_cache") is False:
            self.prefix_cache = keep
            self.described = replace(described, settings=described.settings | {"prefix_cache": keep})

    def fit_streams(self, takes: Callable[[dict[str, Any]], bool]) -> None:
        """Leave out of streams what the server takes in whole answers alone; ``takes`` tries a request."""

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        """The request; everything that would change the distribution is named and switched off."""
        raise NotImplementedError

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        raise NotImplementedError

    def has_text(self, event: dict[str, Any]) -> bool:
        return bool(self.said(event))

    def said(self, event: dict[str, Any]) -> str:
        text = part(choice(event), "text")
        return text if isinstance(text, str) else ""

    def heard(self, event: dict[str, Any]) -> Heard:
        """What an event of a stream says; its ids are those that it adds."""
        ids = part(choice(event), "token_ids")
        counts = self.reported(event)
        read, cached = whole(part(event, *self.read)), whole(part(event, *self.cached))
        return Heard(
            text=self.has_text(event),
            tokens=whole(part(event, *self.written)),
            added=len(ids) if isinstance(ids, list) else None,
            drafted=counts.get("drafted"),
            accepted=counts.get("accepted"),
            said=self.said(event),
            finish=self.finish(event),
            cached=None if read is not None and cached is not None and cached > read else cached,
            unspoken=whole(part(event, "usage", "completion_tokens_details", "reasoning_tokens")),
        )

    def finish(self, response: dict[str, Any]) -> Any:
        """Why an output ended, ``stop`` or ``length`` or the server's word; None while it goes on."""
        word = part(choice(response), "finish_reason")
        return self.ends.get(word, word) if isinstance(word, str) else word

    def reported(self, response: dict[str, Any]) -> dict[str, Any]:
        """``figures`` of a response or an event: times in milliseconds, and counts."""
        return {
            name: (decimal if name.endswith("_ms") else whole)(part(response, *path))
            for name, path in self.figures.items()
        }


COMMON = ("min_p", *PENALTIES)
"""Processors of vLLM and SGLang that both take by these names."""


def sampler_fields(sampling: protocol.Sampling) -> dict[str, float]:
    """By vLLM's and SGLang's names; for greedy the temperature is 0 and all else is off."""
    require_processors(sampling, COMMON)
    drawn = protocol.Sampling(temperature=0.0) if sampling.greedy else sampling
    return {
        "temperature": drawn.temperature,
        "top_p": drawn.top_p,
        "top_k": drawn.top_k or -1,
        **{name: getattr(sampling, name) for name in COMMON},
    }


def _with_stop_token(ids: list[int], by: int | None) -> list[int]:
    return ids if by is None or ids[-1:] == [by] else [*ids, by]


_STOP_TYPES = {"limit": protocol.LENGTH, "eos": protocol.STOP, "word": protocol.STOP}
_SEEDS = 2**32 - 1  # the last one stands for a random seed


class LlamaCppDialect(Dialect):
    """``/completion`` with token ids in and out, times and counts with every answer."""

    path = "/completion"
    counters = (
        "llamacpp:tokens_predicted_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    )
    figures: ClassVar = {
        "prefill_ms": ("timings", "prompt_ms"),
        "decode_ms": ("timings", "predicted_ms"),
        "drafted": ("timings", "draft_n"),
        "accepted": ("timings", "draft_n_accepted"),
    }
    cached = ("timings", "cache_n")
    written = ("tokens_predicted",)  # tokens that end within a character bring no separate event

    def __init__(self, props: dict[str, Any], vocab_size: int | None) -> None:
        self.described = protocol.Described(
            engine="llama.cpp",
            version=str(props.get("build_info", "unknown")),
            vocab_size=vocab_size,
            settings={"prefix_cache": False, "sampler_order": protocol.SAMPLER_ORDER},
            in_flight=whole(props.get("total_slots")),
            limits=list(messages.LLAMA_CPP_SERVER),
            processors=list(llama_cpp.PROCESSORS),
        )

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        """The request; samplers that are not listed do not run, and they run in this order."""
        off = ("min_p", "xtc_probability", "dynatemp_range", "mirostat", "dry_multiplier", "min_keep")
        return {
            **dict.fromkeys((*off, *PENALTIES[1:]), 0),
            **dict.fromkeys(("typical_p", "repeat_penalty"), 1.0),
            **llama_cpp.body(ask),
            "cache_prompt": self.prefix_cache,
            "ignore_eos": not ask.stop_ids,
            **protocol.seed_field("seed", ask.seed, _SEEDS),
            "stream": stream,
        }

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        """The answer; the token that ended it is among ``tokens``, or only counted."""
        written = token_ids(response.get("tokens"), "tokens")
        if response.get("truncated"):
            raise protocol.PeerError("its context is too short for the request: start it with a larger -c")
        predicted = whole(part(response, "timings", "predicted_n"))
        ids, finish, hidden = llama_cpp.output(response, ask)
        if hidden and (predicted is None or predicted <= len(written)):
            finish, hidden = protocol.LENGTH, False
        return protocol.Answer(
            ids,
            finish,
            hidden,
            decoded=None if predicted is None else predicted - 1,  # the prefill gives the first
            logprobs=llama_cpp.logprobs(response, ids, ask),
            **self.reported(response),
        )

    def has_text(self, event: dict[str, Any]) -> bool:
        return not event.get("stop") and bool(event.get("tokens"))

    def finish(self, response: dict[str, Any]) -> Any:
        if not response.get("stop"):
            return None
        return _STOP_TYPES.get(str(response.get("stop_type")), response.get("stop_type"))


class OpenAi(Dialect):
    """What the OpenAI API has, and nothing else: top-k, min-p and most penalties cannot be set."""

    ends: ClassVar = {"eos_token": protocol.STOP, "stop_sequence": protocol.STOP}  # TGI's, in streams

    def __init__(self, model: str, engine: str, version: str, texts: Texts | None, *, ids_in: bool) -> None:
        self._model, self._texts, self.takes_ids = model, texts, ids_in
        self._in_streams: dict[str, Any] = _USAGE
        self.described = protocol.Described(
            engine=engine,
            version=version,
            in_flight=protocol.MOST_IN_FLIGHT,
            limits=[
                messages.TEXT_RETOKENISED,
                *([] if ids_in else [messages.PROMPT_AS_TEXT]),
                *messages.OPENAI,
            ],
            processors=list(self._processors),
        )

    _processors = ("presence_penalty", "frequency_penalty", "logit_bias")

    def fit_streams(self, takes: Callable[[dict[str, Any]], bool]) -> None:
        kept = self._in_streams
        fewer = [{name: kept[name] for name in kept if name != left_out} for left_out in kept]
        probe = self._one_token_request()
        tried = (fields for fields in (kept, *fewer) if takes(probe | fields))
        self._in_streams = next(tried, {})

    def _one_token_request(self) -> dict[str, Any]:
        prompt: str | list[int] = [0] if self.takes_ids else "a"
        return {"model": self._model, "prompt": prompt, "max_tokens": 1}

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        drawn = ask.sampling
        require_processors(drawn, self._processors)
        if drawn.top_k and not drawn.greedy:
            raise protocol.PeerError(f"its API has no top-k, and top-k {drawn.top_k} is asked for")
        prompt: str | list[int] = ask.prompt_ids
        if not self.takes_ids:
            prompt = self._tokenizer.text(ask.prompt_ids)
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": ask.max_new_tokens,
            "temperature": 0.0 if drawn.greedy else drawn.temperature,
            **({} if drawn.greedy or drawn.top_p == 1.0 else {"top_p": drawn.top_p}),
            "presence_penalty": drawn.presence_penalty,
            "frequency_penalty": drawn.frequency_penalty,
            **({"logit_bias": drawn.logit_bias} if drawn.logit_bias else {}),
            **protocol.seed_field("seed", ask.seed),
            **({"stop": ask.stop} if ask.stop else {}),
            "stream": stream,
            **(self._in_streams if stream else {}),
        }

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        """The answer; the server must have read as many prompt tokens as were sent."""
        text = part(choice(response), "text")
        if not isinstance(text, str):
            raise protocol.PeerError("its answer holds no choices[0].text")
        read = whole(part(response, "usage", "prompt_tokens"))
        if read not in (None, len(ask.prompt_ids)):
            why = f"it read a prompt of {read} tokens where {len(ask.prompt_ids)} were sent"
            raise protocol.PeerError(why)
        return self._ended_answer(response, text)

    def _ended_answer(
        self, response: dict[str, Any], text: str, ids: list[int] | None = None
    ) -> protocol.Answer:
        """With the ids of the text where the server gives none."""
        require_ended(self.finish(response))
        stopped = self.finish(response) == protocol.STOP
        return protocol.Answer(
            self._tokenizer.ids(characters(text)) if ids is None else ids,
            protocol.STOP if stopped else protocol.LENGTH,
            hidden_stop=stopped,
            retokenised=ids is None,
        )

    @property
    def _tokenizer(self) -> Texts:
        if self._texts is None:
            raise protocol.PeerError("it answers with text, and there is no tokenizer to make ids of it")
        return self._texts


_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
_IDS: dict[str, Any] = {"return_token_ids": True}

REASONING = ("reasoning_content", "reasoning")
"""What comes before an answer, by the names that servers have for it."""


class Chat(OpenAi):
    """``/v1/chat/completions`` alone: messages in, and a prompt of the server's own making.

    Args:
        limit: the field that limits an output's tokens.
        ids_out: whether it returns token ids.
    """

    path = "/v1/chat/completions"
    ends: ClassVar = OpenAi.ends | dict.fromkeys(("tool_calls", "function_call"), protocol.STOP)

    def __init__(
        self, model: str, engine: str, version: str, texts: Conversations, limit: str, *, ids_out: bool
    ) -> None:
        super().__init__(model, engine, version, texts, ids_in=False)
        self._conversations = texts
        self._limit = limit
        self._ids_out = ids_out
        self._in_streams = _USAGE | (_IDS if ids_out else {})
        self.described = replace(self.described, limits=[messages.CHAT_ALONE, *messages.OPENAI])

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        body = super().body(ask, stream=stream)
        del body["prompt"]
        limit = {self._limit: body.pop("max_tokens")}
        ids = _IDS if self._ids_out and not stream else {}
        return {**body, **self._conversations.asked(ask.prompt_ids), **limit, **ids}

    def _one_token_request(self) -> dict[str, Any]:
        asked = [{"role": "user", "content": "a"}]
        return {"model": self._model, "messages": asked, self._limit: 1}

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        """The answer; reasoning is part of the output, before it."""
        text = _message_text(part(choice(response), "message"))
        if text is None:
            raise protocol.PeerError(
                "its answer holds no choices[0].message with content, calls or reasoning"
            )
        ids = part(choice(response), "token_ids") if self._ids_out else None
        known = None if ids is None else token_ids(ids, "choices[0].token_ids")
        return self._ended_answer(response, text, known)

    def said(self, event: dict[str, Any]) -> str:
        return _message_text(part(choice(event), "delta")) or ""

    def heard(self, event: dict[str, Any]) -> Heard:
        """An event's tokens: its ids, or those that have a log-probability."""
        thought = bool(_reasoning(part(choice(event), "delta")))
        heard = replace(super().heard(event), thought=thought)
        rows = part(choice(event), "logprobs", "content")
        return replace(heard, added=len(rows)) if heard.added is None and isinstance(rows, list) else heard


def _message_text(message: Any) -> str | None:
    """Reasoning, by either name, answer or refusal, calls; None where nothing."""
    said = (_reasoning(message), part(message, "content"), part(message, "refusal"), _call_text(message))
    texts = [text for text in said if isinstance(text, str)]
    return "".join(texts) if texts else None


def _call_text(message: Any) -> str | None:
    """Names and arguments of the functions that a message calls; None where it calls none."""
    calls = part(message, "tool_calls")
    functions = [part(call, "function") for call in calls] if isinstance(calls, list) else []
    functions.append(part(message, "function_call"))
    texts = [part(function, name) for function in functions for name in ("name", "arguments")]
    known = [text for text in texts if isinstance(text, str)]
    return "".join(known) if known else None


def _reasoning(message: Any) -> str | None:
    return next((text for name in REASONING if isinstance(text := part(message, name), str)), None)


class SglangDialect(Dialect):
    """``/generate`` with token ids in and out."""

    path = "/generate"
    figures: ClassVar = {
        "drafted": ("meta_info", "spec_num_proposed_drafts"),
        "accepted": ("meta_info", "spec_num_correct_drafts"),
    }
    written = ("meta_info", "completion_tokens")
    read = ("meta_info", "prompt_tokens")
    cached = ("meta_info", "cached_tokens")

    def __init__(self, info: dict[str, Any]) -> None:
        disabled = info.get("disable_radix_cache")
        prefix_cache = None if disabled is None else not disabled
        self.described = protocol.Described(
            engine="SGLang",
            version=str(info.get("version", "unknown")),
            in_flight=protocol.MOST_IN_FLIGHT,
            settings={
                "dtype": info.get("dtype"),
                "kv_dtype": info.get("kv_cache_dtype"),
                "prefix_cache": prefix_cache,
                "speculative_algorithm": info.get("speculative_algorithm"),
            },
            limits=[*messages.SGLANG, *([messages.SGLANG_PREFIX_CACHE] if prefix_cache else [])],
            processors=list(COMMON),
        )

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        """The request; with ``ignore_eos`` only ``stop_token_ids`` end the output."""
        return {
            "input_ids": ask.prompt_ids,
            "sampling_params": {
                "max_new_tokens": ask.max_new_tokens,
                **sampler_fields(ask.sampling),
                **protocol.seed_field("sampling_seed", ask.seed),
                "stop_token_ids": ask.stop_ids,
                "ignore_eos": True,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
            **({"return_logprob": True} if ask.logprobs else {}),
            "stream": stream,
        }

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        message = part(response, "meta_info", "finish_reason", "message")
        if self.finish(response) == "abort":
            raise protocol.PeerError(f"it aborted the request: {protocol.shortened(str(message), 200)}")
        require_ended(self.finish(response))
        ids = token_ids(response.get("output_ids"), "output_ids")
        matched = whole(part(response, "meta_info", "finish_reason", "matched"))
        ids, finish = until_stop(_with_stop_token(ids, matched), ask)
        loops = whole(part(response, "meta_info", "spec_verify_ct")) or None
        rows = part(response, "meta_info", "output_token_logprobs")  # [log-probability, id, text] a token
        values = [part(row, 0) for row in rows] if isinstance(rows, list) else None
        return protocol.Answer(
            ids, finish, loops=loops, logprobs=logprobs(values, ids, ask), **self.reported(response)
        )

    def has_text(self, event: dict[str, Any]) -> bool:
        return bool(whole(part(event, *self.written)))

    def finish(self, response: dict[str, Any]) -> Any:
        return part(response, "meta_info", "finish_reason", "type")


_MOST_SEED = 2**63


class VllmDialect(Dialect):
    """``/v1/completions`` with token ids in and out."""

    counters = (
        "vllm:generation_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    )
    figures: ClassVar = {
        "prefill_ms": ("metrics", "time_to_first_token_ms"),
        "decode_ms": ("metrics", "generation_time_ms"),
        "drafted": ("metrics", "speculative_decoding", "num_draft_tokens"),
        "accepted": ("metrics", "speculative_decoding", "num_accepted_draft_tokens"),
    }
    steps = ("metrics", "speculative_decoding", "per_step_accepted")

    def __init__(self, model: str, version: str) -> None:
        self._model, self._salt = model, uuid.uuid4().hex
        self.described = protocol.Described(
            engine="vLLM",
            version=version,
            in_flight=protocol.MOST_IN_FLIGHT,
            settings={"prefix_cache": False, "sampler_order": protocol.SAMPLER_ORDER},
            limits=[messages.RULE_AND_PRECISION_UNREPORTED],
            processors=list(COMMON),
        )

    def body(self, ask: protocol.Ask, *, stream: bool) -> dict[str, Any]:
        """A salt keeps it out of the prefix cache; with ``ignore_eos`` only ``stop_token_ids`` end it."""
        return {
            "model": self._model,
            "prompt": ask.prompt_ids,
            "max_tokens": ask.max_new_tokens,
            **sampler_fields(ask.sampling),
            **protocol.seed_field("seed", ask.seed, _MOST_SEED),
            "stop_token_ids": ask.stop_ids,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "return_token_ids": True,
            **({"logprobs": 0} if ask.logprobs else {}),
            "cache_salt": self._salt if self.prefix_cache else uuid.uuid4().hex,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }

    def answer(self, response: dict[str, Any], ask: protocol.Ask) -> protocol.Answer:
        """The answer; it has times with ``--enable-per-request-metrics``."""
        require_ended(self.finish(response))
        ids = token_ids(part(choice(response), "token_ids"), "choices[0].token_ids")
        stopped_by = whole(part(choice(response), "stop_reason"))
        ids, finish = until_stop(_with_stop_token(ids, stopped_by), ask)
        counts = part(response, *self.steps)
        reported = self.reported(response)
        steps = None if counts is None else token_ids(counts, "per_step_accepted")
        return protocol.Answer(
            ids,
            finish,
            decoded=None if reported["decode_ms"] is None else len(ids) - 1,
            loops=None if steps is None else len(steps),
            accepted_per_loop=steps,
            logprobs=logprobs(part(choice(response), "logprobs", "token_logprobs"), ids, ask),
            **reported,
        )

    def has_text(self, event: dict[str, Any]) -> bool:
        return bool(part(choice(event), "token_ids")) or super().has_text(event)

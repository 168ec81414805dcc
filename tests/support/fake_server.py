"""Servers that stand in for engines: a tiny model behind the dialects of real ones, and planted faults.

The next token depends on the last one alone: ``(token * 7 + 3) % 32``, so every output is known.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB = 32
Events = list[dict[str, Any]]


def following(token: int) -> int:
    """The most probable token behind another."""
    return (token * 7 + 3) % VOCAB


def written(prompt: list[int], most: int, stops: list[int]) -> list[int]:
    """What the model writes greedily, with the stop token."""
    ids, last = [], prompt[-1]
    for _ in range(most):
        last = following(last)
        ids.append(last)
        if last in stops:
            break
    return ids


@dataclass
class Fake:
    """What a server is like, and what it saw.

    Attributes:
        dialect: ``vllm``, ``llama``, ``sglang``, ``ids-in``, ``text``, ``chat`` (nothing else) or ``strict``
            (text and chat, and refuses fields that it does not know).
        fault: ``rubbish``, ``html``, ``slow``, ``500``, ``401``, ``404``, ``wrong-model``, ``midway`` (ends a
            stream early, with an error), ``error-object``, ``error-event``, ``error-text`` (in other shapes),
            ``cut`` (a stream that just ends), ``abort`` (named as the reason of an answer's end), ``nan`` (in
            ``/metrics``), ``keeps-stop`` (llama.cpp without the token that ended it), ``uncounted-prompt``,
            ``counts-more`` (``/metrics`` counts another client's tokens, too), ``too-many`` (tokens),
            ``backwards`` (llama.cpp counts down), ``drops`` (every third connection), ``uncounted`` (a chat
            without usage), ``no-chat`` (nor completions).
        names: of the models that it lists.
        step_s: how long a token takes.
        lasts: it fails behind so many requests; 0: never.
        k: draft tokens a loop; 0: none.
        absent: what a chat server answers where completions would be; 400: it takes none.
        reasoning: the field of a chat's first tokens, two of them; empty for none.
        counted: how a chat's events show their tokens: ``ids``, ``logprobs`` or not at all.
        limits_by: the one field that limits a chat's output.
        not_in_streams: fields that it refuses in a request for a stream.
        bursts: tokens of a chat's events, the last one's until the end.
        hidden: tokens of a chat's thought that are counted and not streamed.
        prefix_s: how long a text server reads a prompt that it has not seen; it tells what it had cached.
        line_end: of its streams' lines.
        data_lines: of an event: 1 or 2.
        shape: what becomes of a stream's events before they are sent, such as one of ``SHAPES``.
        page_of_metrics: what becomes of ``/metrics``, such as one of ``METRICS``.
        page: what a request for a stream gets in place of one: its type and the page.
        seen: bodies of requests.
    """

    dialect: str = "vllm"
    fault: str = ""
    names: tuple[str, ...] = ("tiny",)
    step_s: float = 0.0
    lasts: int = 0
    k: int = 0
    absent: int = 404
    reasoning: str = ""
    counted: str = ""
    limits_by: str = "max_tokens"
    not_in_streams: tuple[str, ...] = ()
    bursts: tuple[int, ...] = ()
    hidden: int = 0
    prefix_s: float = 0.0
    line_end: str = "\n"
    data_lines: int = 1
    shape: Callable[[Events], Events] | None = None
    page: tuple[str, bytes] | None = None
    page_of_metrics: Callable[[str], str] = str
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    prompts: set[str] = field(default_factory=set)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, prompt: list[int], most: int, stops: list[int]) -> list[int]:
        """An output; counted."""
        ids = written(prompt, 2 * most if self.fault == "too-many" else most, stops)
        if self.fault == "wrong-model":
            ids = [(token + 1) % VOCAB for token in ids]
        with self.lock:
            self.tokens += len(ids) + (5 if self.fault == "counts-more" else 0)
            self.drafted += self.k * len(ids)
            self.accepted += len(ids) // 2 if self.k else 0
        return ids

    def counts(self, ids: list[int]) -> tuple[int, int]:
        """Draft tokens of one request: proposed, kept."""
        return self.k * len(ids), len(ids) // 2

    def logprobs(self, ids: list[int]) -> list[float] | None:
        """One of each token of an output, known to tests; None: the server tells none."""
        return [-float(token) for token in ids]

    def metrics(self) -> str:
        """Prometheus' page of vLLM or llama.cpp."""
        vllm = self.dialect == "vllm"
        prefix, written = (
            ("vllm:", "generation_tokens_total") if vllm else ("llamacpp:", "tokens_predicted_total")
        )
        label = '{engine="0", model_name="a tiny model"}' if vllm else ""
        accepted = "NaN" if self.fault == "nan" else float(self.accepted)
        lines = [
            f"{prefix}{written}{label} {float(self.tokens)}",
            f"{prefix}spec_decode_num_draft_tokens_total{label} {float(self.drafted)}",
            f"{prefix}spec_decode_num_accepted_tokens_total{label} {accepted}",
        ]
        return self.page_of_metrics("# HELP something\n" + "\n".join(lines) + "\n")


_ENDS = {
    "midway": f"data: {json.dumps({'error': {'message': 'worker died'}})}\n\n",
    "error-object": f"data: {json.dumps({'object': 'error', 'message': 'worker died', 'code': 500})}\n\n",
    "error-event": f"event: error\ndata: {json.dumps({'message': 'worker died'})}\n\n",
    "error-text": "event: error\ndata: worker died\n\n",
    "cut": "",
    "abort": f"data: {json.dumps({'choices': [{'text': '', 'delta': {}, 'finish_reason': 'abort'}]})}\n\n",
}
"""How streams end that fail in their middle."""


def _error_in_choice(events: Events) -> Events:
    """A choice that has an error and ends properly."""
    failed = {"index": 0, "error": {"message": "worker died"}, "finish_reason": "stop"}
    return [*events[:2], {"choices": [failed]}]


def _detail(events: Events) -> Events:
    """An error in words of a framework's own."""
    return [*events[:2], {"detail": "worker died"}]


def _another_output(events: Events) -> Events:
    """A second output, which nobody asked for, beside the first and in front of it."""
    other = {"index": 1, "text": "z", "delta": {"content": "z"}, "finish_reason": None}
    return [each for event in events for each in ({"choices": [other]}, _beside(event, other))]


def _beside(event: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return event | {"choices": [other, *event["choices"]]} if event["choices"] else event


def _of_choices(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Events], Events]:
    return lambda events: [event | {"choices": [change(row) for row in event["choices"]]} for event in events]


def _with_usage(**fields: Any) -> Callable[[Events], Events]:
    return lambda events: [
        event | ({"usage": event["usage"] | fields} if "usage" in event else {}) for event in events
    ]


def _half_characters(events: Events) -> Events:
    """A character outside the basic plane whose halves come in two events."""
    halves = iter("\ud83d\ude00")
    return _of_choices(lambda row: row | ({"text": next(halves, row["text"])} if "text" in row else {}))(
        events
    )


def _with_counts(event: dict[str, Any]) -> dict[str, Any]:
    """More draft tokens kept than proposed, where llama.cpp, SGLang or vLLM say so."""
    changed = {
        "timings": {"draft_n": 4, "draft_n_accepted": 9},
        "meta_info": {"spec_num_proposed_drafts": 4, "spec_num_correct_drafts": 9},
    }
    counted = {name: event[name] | fields for name, fields in changed.items() if name in event}
    speculated = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 9}
    return event | (counted or {"metrics": {"speculative_decoding": speculated}})


def _called(row: dict[str, Any]) -> dict[str, Any]:
    said = row.get("delta", {}).get("content")
    delta = {"tool_calls": [{"index": 0, "function": {"arguments": said}}]} if said else {}
    return {"delta": delta, "finish_reason": "tool_calls" if row.get("finish_reason") else None}


def _in_tags(events: Events) -> Events:
    """A thought of two events within the text."""
    pieces = iter(("<think>hm", "</think>"))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        said = row.get("text") or row.get("delta", {}).get("content")
        piece = next(pieces, said) if said else said
        return row | ({"text": piece} if "text" in row else {"delta": {"content": piece}})

    return _of_choices(change)(events)


SHAPES: dict[str, Callable[[Events], Events]] = {
    "error-in-choice": _error_in_choice,
    "detail": _detail,
    "another-output": _another_output,
    "half-characters": _half_characters,
    "in-tags": _in_tags,
    "calls": _of_choices(_called),
    "wordless": _of_choices(lambda row: row | {"text": "", "delta": {}}),
    "tgi": _of_choices(lambda row: row | {"finish_reason": "eos_token" if row.get("finish_reason") else ""}),
    "counts-less": _with_usage(completion_tokens=2),
    "keeps-more": lambda events: [_with_counts(event) for event in events],
    "reasoning-told": _with_usage(completion_tokens_details={"reasoning_tokens": 3}),
    "cached-more": _with_usage(prompt_tokens_details={"cached_tokens": 99}),
}
"""Streams as servers write them, by what is odd."""


def _accepting(change: Callable[[float], str]) -> Callable[[str], str]:
    """Another value for the tokens that were accepted."""
    return lambda page: re.sub(
        r"(?m)^(.*accepted_tokens_total.*) (\S+)$", lambda line: f"{line[1]} {change(float(line[2]))}", page
    )


METRICS: dict[str, Callable[[str], str]] = {
    "kept more than proposed": _accepting(lambda value: str(100 * value)),
    "counts down": _accepting(lambda value: str(1e6 - value)),
    "no digits of ASCII": _accepting(lambda value: "\u0967\u0968"),
    "underscores": _accepting(lambda value: "1_000"),
    "negative": _accepting(lambda value: str(value - 1e6)),
    "too long": lambda page: page + "x" * (9 << 20),
    "one engine of two is no number": lambda page: page + page.replace('"0"', '"1"').replace(".0", "NaN"),
}
"""Pages of ``/metrics`` that count nothing, by what is wrong."""


def text_of(ids: list[int]) -> str:
    """A letter for each token."""
    return "".join(chr(65 + token) for token in ids)


class Letters:
    """The tokenizer of ``text_of``."""

    def text(self, ids: list[int]) -> str:
        return text_of(ids)

    def ids(self, text: str) -> list[int]:
        return [ord(letter) - 65 for letter in text]


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """Run a server; its URL."""
    server = _Quiet(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no news."""


def _handler(fake: Fake) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.fake = fake
    return Handler


class _Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.fake
        fake.keys.append(self.headers.get("Authorization"))
        if self._refused():
            return
        self.path, _, query = self.path.partition("?")
        fake.queries.append(query)
        found = _GET.get(self.path, lambda _: None)(fake)
        if self.path == "/metrics" and fake.dialect in ("vllm", "llama"):
            self._send(200, fake.metrics().encode(), "text/plain")
        elif found is None:
            self._json(404, {"error": {"message": "not found"}})
        else:
            self._json(200, found)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused() or self._failing():
            return
        fake.seen.append(body)
        refused = [name for name in fake.not_in_streams if body.get("stream") and name in body]
        if refused:
            self._json(400, {"error": {"message": f"not in a stream: {refused[0]}"}})
            return
        with fake.lock:
            fake.busy += 1
            fake.most_busy = max(fake.most_busy, fake.busy)
        try:
            _POST[fake.dialect](self, body)
        finally:
            with fake.lock:
                fake.busy -= 1

    def _refused(self) -> bool:
        """Faults of every answer."""
        if self.fake.fault == "html":
            self._send(200, b"<html><body>Welcome</body></html>", "text/html")
        elif self.fake.fault in ("401", "404"):
            self._json(int(self.fake.fault), {"error": {"message": "no"}})
        return self.fake.fault in ("html", "401", "404")

    def _failing(self) -> bool:
        """Faults of generation."""
        if self.fake.fault == "500" or 0 < self.fake.lasts <= len(self.fake.seen):
            self._json(500, {"error": {"message": "out of memory"}})
            return True
        if self.fake.fault == "drops" and len(self.fake.seen) % 3 == 2:
            self.fake.seen.append({})
            self.close_connection = True
            return True
        if self.fake.fault == "rubbish":
            self._json(200, ["what", 1])
        elif self.fake.fault == "slow":
            time.sleep(0.6)
            self._json(200, {})
        return self.fake.fault in ("rubbish", "slow")

    def _json(self, status: int, found: Any) -> None:
        self._send(status, json.dumps(found).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def events(self, events: Events) -> None:
        """Server-sent events in chunks, a pause before each."""
        if self.fake.page is not None:
            kind, page = self.fake.page
            self._send(200, page, kind)
            return
        events = events if self.fake.shape is None else self.fake.shape(events)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        fake, end = self.fake, self.fake.line_end
        self._chunk(f": ping{end}{end}")
        dies = fake.fault in _ENDS
        for event in events[: len(events) // 2] if dies else events:
            time.sleep(fake.step_s)
            text = json.dumps(event)
            at = text.index(":") + 1 if fake.data_lines == 2 else 0
            lines = [text[:at], text[at:]] if at else [text]
            self._chunk("".join(f"data: {line}{end}" for line in lines) + end)
        if dies:
            self._chunk(_ENDS[fake.fault].replace("\n", end))
        self._chunk(f"data: [DONE]{end}{end}")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def answer(self, found: dict[str, Any], tokens: int) -> None:
        """One whole answer, after as long as its tokens take."""
        time.sleep(self.fake.step_s * tokens)
        self._json(200, found)

    # The dialects.

    def vllm(self, body: dict[str, Any]) -> None:
        ids = self.fake.write(body["prompt"], body["max_tokens"], body.get("stop_token_ids", []))
        stopped = len(ids) < body["max_tokens"]
        ending = {
            "finish_reason": "stop" if stopped else "length",
            "stop_reason": ids[-1] if stopped else None,
        }
        if not body.get("stream"):
            choice = {"text": text_of(ids), "token_ids": ids, "prompt_token_ids": body["prompt"], **ending}
            if "logprobs" in body:
                choice["logprobs"] = {"token_logprobs": self.fake.logprobs(ids)}
            self.answer({"choices": [choice], "usage": self._usage(body["prompt"], ids)}, len(ids))
            return
        events: list[dict[str, Any]] = [{"choices": [{"text": "", "token_ids": [i]}]} for i in ids]
        events[-1]["choices"][0] |= ending
        self.events([*events, {"choices": [], "usage": self._usage(body["prompt"], ids)}])

    def llama(self, body: dict[str, Any]) -> None:
        stops = {31: "word"} if "\n" in body["stop"] else {}
        stops |= {} if body["ignore_eos"] else {0: "eos"}
        ids = self.fake.write(body["prompt"], body["n_predict"], list(stops))
        stop = stops.get(ids[-1], "limit")
        drafted, accepted = self.fake.counts(ids)
        counts = {"draft_n": drafted, "draft_n_accepted": accepted} if self.fake.k else {}
        timings = {"prompt_ms": 1.0, "predicted_n": len(ids), "predicted_ms": 2.0 * len(ids), **counts}
        final = {"stop": True, "stop_type": stop, "stopping_word": "\n" if stop == "word" else ""}
        shown = ids if stop == "limit" or self.fake.fault != "keeps-stop" else ids[:-1]
        if not body["stream"]:
            if "n_probs" in body:
                rows = [{"id": i, "logprob": -float(i)} for i in shown]
                final["completion_probabilities"] = rows[1:] if self.fake.fault == "half-character" else rows
            self.answer({"tokens": shown, "timings": timings, **final}, len(ids))
            return
        events = [
            {"tokens": [i], "stop": False, "tokens_predicted": place + 1} for place, i in enumerate(shown)
        ]
        if self.fake.fault == "backwards":
            events.reverse()
        self.events([*events, {"tokens": [], "tokens_predicted": len(ids), "timings": timings, **final}])

    def sglang(self, body: dict[str, Any]) -> None:
        asked = body["sampling_params"]
        ids = self.fake.write(body["input_ids"], asked["max_new_tokens"], asked["stop_token_ids"])
        stopped = len(ids) < asked["max_new_tokens"]
        reason = {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length", "length": len(ids)}
        drafted, accepted = self.fake.counts(ids)
        counts = {
            "spec_verify_ct": 3,
            "spec_num_proposed_drafts": drafted,
            "spec_num_correct_drafts": accepted,
        }
        meta = {"completion_tokens": len(ids), "finish_reason": reason, **(counts if self.fake.k else {})}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-float(i), i, None] for i in ids]
        found = {"output_ids": ids, "meta_info": meta}
        if not body["stream"]:
            self.answer(found, len(ids))
            return
        events: list[dict[str, Any]] = [
            {"output_ids": ids[: n + 1], "meta_info": {"completion_tokens": n + 1, "finish_reason": None}}
            for n in range(len(ids) - 1)
        ]
        self.events([*events, found])

    def openai(self, body: dict[str, Any]) -> None:
        text_in = self.fake.dialect in ("text", "strict")
        if text_in and not isinstance(body["prompt"], str):
            self._json(422, {"error": "prompt: expected a string"})
            return
        prompt = Letters().ids(body["prompt"]) if text_in else body["prompt"]
        stops = Letters().ids("".join(body.get("stop", [])))
        ids = self.fake.write(prompt, body["max_tokens"], stops)
        stopped = len(ids) < body["max_tokens"]
        shown = text_of(ids[:-1] if stopped else ids)
        reason = "stop" if stopped else "length"
        if not body.get("stream"):
            choice = {"text": shown, "finish_reason": reason}
            self.answer({"choices": [choice], "usage": self._usage(prompt, ids)}, len(ids))
            return
        events: list[dict[str, Any]] = [{"choices": [{"text": letter}]} for letter in shown]
        events[-1]["choices"][0]["finish_reason"] = reason
        usage = self._usage(prompt, ids)
        if self.fake.prefix_s:
            known = str(body["prompt"]) in self.fake.prompts
            self.fake.prompts.add(str(body["prompt"]))
            time.sleep(0.0 if known else self.fake.prefix_s)
            usage["prompt_tokens_details"] = {"cached_tokens": len(prompt) - 1 if known else 0}
        told = [{"choices": [], "usage": usage}] if "stream_options" in body else []
        self.events([*events, *told])

    def strict(self, body: dict[str, Any]) -> None:
        if self.path.endswith("/chat/completions"):
            self.chat(body)
        elif "return_token_ids" in body:
            self._json(422, {"error": {"message": "unknown: return_token_ids"}})
        else:
            self.openai(body)

    def chat(self, body: dict[str, Any]) -> None:
        """Its template puts a token before and one behind what is asked."""
        fake = self.fake
        unknown = {*body} & {"max_tokens", "max_completion_tokens", "return_token_ids"} - {fake.limits_by}
        unknown -= {"return_token_ids"} if fake.counted == "ids" else set()
        if self.path != "/v1/chat/completions" or fake.fault == "no-chat":
            self._json(fake.absent, {"error": {"message": "this model has chat alone"}})
            return
        if unknown:
            self._json(400, {"error": {"message": f"unknown: {min(unknown)}"}})
            return
        prompt = [1, *Letters().ids(body["messages"][-1]["content"]), 2]
        most = body[fake.limits_by]
        ids = fake.write(prompt, max(1, most - fake.hidden), Letters().ids("".join(body.get("stop", []))))
        stopped = len(ids) < max(1, most - fake.hidden)
        shown = ids[:-1] if stopped else ids
        reason = "stop" if stopped else "length"
        thought = shown[:2] if fake.reasoning else []
        usage = {} if fake.fault == "uncounted" else {"usage": self._usage(prompt, ids)}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text_of(shown[len(thought) :]) or None}
            message |= {fake.reasoning: text_of(thought)} if thought else {}
            told = {"token_ids": ids} if fake.counted == "ids" else {}
            self.answer(
                {"choices": [{"message": message, "finish_reason": reason, **told}], **usage}, len(ids)
            )
            return
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        for part, name in ((thought, fake.reasoning), (shown[len(thought) :], "content")):
            sizes = [*fake.bursts, len(part)] if fake.bursts else [1] * len(part)
            for size in sizes:
                some, part = part[:size], part[size:]
                if some:
                    told = {"token_ids": some} if fake.counted == "ids" else {}
                    rows = [{"token": text_of([i]), "logprob": -1.0} for i in some]
                    told |= {"logprobs": {"content": rows}} if fake.counted == "logprobs" else {}
                    events.append({"choices": [{"delta": {name: text_of(some)}, **told}]})
        events.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        if fake.hidden and usage:
            usage["usage"]["completion_tokens"] += fake.hidden
            usage["usage"]["completion_tokens_details"] = {"reasoning_tokens": fake.hidden}
        told = [{"choices": [], **usage}] if usage and "stream_options" in body else []
        self.events([*events, *told])

    def _usage(self, prompt: list[int], ids: list[int]) -> dict[str, Any]:
        read = {} if self.fake.fault == "uncounted-prompt" else {"prompt_tokens": len(prompt)}
        return read | {"completion_tokens": len(ids)}


def _models(fake: Fake) -> dict[str, Any]:
    owner = {"vllm": "vllm", "llama": "llamacpp", "sglang": "sglang"}.get(fake.dialect, "somebody")
    meta = {"meta": {"n_vocab": VOCAB}} if fake.dialect == "llama" else {}
    return {"object": "list", "data": [{"id": name, "owned_by": owner, **meta} for name in fake.names]}


_GET: dict[str, Any] = {
    "/v1/models": _models,
    "/version": lambda fake: {"version": "0.32.0"} if fake.dialect == "vllm" else None,
    "/props": lambda fake: (
        {"default_generation_settings": {}, "build_info": "b11434-abc", "eos_token": "<eos>"}
        if fake.dialect == "llama"
        else None
    ),
    "/get_server_info": lambda fake: (
        {"version": "0.5.9", "dtype": "auto", "disable_radix_cache": False, "speculative_algorithm": "EAGLE"}
        if fake.dialect == "sglang"
        else None
    ),
    "/info": lambda fake: (
        {"model_id": "tiny", "max_total_tokens": 2048, "version": "3.3"} if fake.dialect == "text" else None
    ),
}
_POST: dict[str, Any] = {
    "vllm": _Handler.vllm,
    "llama": _Handler.llama,
    "sglang": _Handler.sglang,
    "ids-in": _Handler.openai,
    "text": _Handler.openai,
    "chat": _Handler.chat,
    "strict": _Handler.strict,
}

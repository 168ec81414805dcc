"""An engine that is already running, behind an OpenAI-compatible server, and JSON over HTTP to it."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

import requests
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from spsbench.base import UnavailableError, protocol
from spsbench.config import withheld
from spsbench.models import Bounded
from spsbench.parts.external import dialects, event_stream
from spsbench.parts.external.waves import Hear, threaded
from spsbench.parts.external.worker import MOST_BYTES, Failures

KEY = "SPSBENCH_API_KEY"
"""Environment variable with the key of a server that asks for one; it is sent and never written down."""

DONE, ERROR = b"[DONE]", "error"
"""The data that ends a stream, and the word by which events and objects tell a fault."""

_CONNECT_S = 10.0
_SHOWN_BYTES = 1000
_ABSENT = (404, 405, 501)

_SAMPLE = re.compile(
    r"""
    (?P<name> [a-zA-Z_:][\w:]* )
    (?: \{ (?: [^"}] | "(?:[^"\\]|\\.)*" )* \} )?
    \s+ (?P<value>\S+) (?: \s+ -?[\d.]+ )?
    \s* (?: \s\#\ \{ .* )? $
    """,
    re.VERBOSE,
)
"""A line of Prometheus' text format: a name, labels, a value, perhaps a timestamp, OpenMetrics' example."""

_VALUE = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


class Absent(protocol.PeerError):
    """Nothing is at a path of the server."""


class HttpClient:
    """A server by its root.

    Several threads may ask at once. Every request has its own connection: of requests over connections
    that each thread kept, llama-server (build 11434) closed one in ten early.

    Args:
        answer_s: how long one answer may take, to its last byte, in seconds.
    """

    def __init__(self, root: str, answer_s: float) -> None:
        self.root, self._answer_s = root, answer_s
        self._login, self._query = withheld(root)
        key = os.environ.get(KEY)
        self._headers = {"Connection": "close", "Accept-Encoding": "identity"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )

    def get(self, path: str) -> Any:
        with self._response("GET", path) as response:
            return self._json(response, path)

    def find(self, path: str) -> dict[str, Any] | None:
        """The JSON object at a path, or None for anything else that a server may answer."""
        with self._response("GET", path) as response:
            if response.status_code in (401, 403):
                self._require_success(response, path)
            try:
                content = protocol.loaded(response.content) if _is_ok(response) else None
            except protocol.ProtocolError:
                return None
            return content if isinstance(content, dict) else None

    def text(self, path: str) -> str | None:
        with self._response("GET", path) as response:
            return response.content.decode(errors="replace") if _is_ok(response) else None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._response("POST", path, body) as response:
            return self._object(self._json(response, path), path)

    def accepts(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The object that answers a request, or None where the server rejects the request."""
        with self._response("POST", path, body) as response:
            wrong = response.status_code in (400, 422)
            return None if wrong else self._object(self._json(response, path), path)

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        """Whether the server takes a request for a stream; what it would say is not heard."""
        with self._response("POST", path, body | {"stream": True}, most=math.inf) as response:
            wrong = response.status_code in (400, 422)
            if not wrong:
                self._require_success(response, path)
            return not wrong

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a stream as they arrive; an error is raised, whatever its shape."""
        with self._response("POST", path, body, most=math.inf) as response:
            self._require_success(response, path)
            begun = b""
            is_stream = False

            def pieces() -> Iterator[bytes]:
                nonlocal begun
                while piece := response.raw.read1(1 << 16):
                    begun += b"" if is_stream else piece[: _SHOWN_BYTES - len(begun)]
                    yield piece

            try:
                for event in event_stream.events(pieces(), MOST_BYTES):
                    is_stream = True
                    if event.data.strip() == DONE:
                        return
                    yield self._object_without_error(event, path)
                if not is_stream:
                    kind = response.headers.get("Content-Type", "a page")
                    why = protocol.shortened(_error_message(begun)) if begun.strip() else "an empty page"
                    raise protocol.PeerError(f"{path} answers {kind} and no stream: {why}")
            except protocol.ProtocolError as error:
                raise protocol.PeerError(f"{path} streams {error}") from None

    def _object_without_error(self, event: event_stream.StreamEvent, path: str) -> dict[str, Any]:
        is_error = event.kind == ERROR
        try:
            content = self._object(protocol.loaded(event.data), path)
        except (protocol.ProtocolError, protocol.PeerError):
            if not is_error:
                raise
            content = {ERROR: event.data.decode(errors="replace")}
        fault = content.get(ERROR) or dialects.part(dialects.choice(content), ERROR)
        if is_error or fault or content.get("object") == ERROR:
            why = fault or content
            raise protocol.PeerError(f"{path} says {protocol.shortened(json.dumps(why), 200)}")
        return content

    @contextmanager
    def _response(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, most: float = MOST_BYTES
    ) -> Iterator[requests.Response]:
        """Errors are spsbench's own, also while it is read."""
        url = self.root + path
        limits = (min(_CONNECT_S, self._answer_s), self._answer_s)
        late = protocol.PeerError(f"no answer from {url} within {self._answer_s:g} s")
        long = protocol.PeerError(f"{url} answers more than {MOST_BYTES >> 20} MB")
        try:
            with requests.Session() as session:
                for scheme in ("http://", "https://"):
                    session.mount(scheme, Bounded(self._answer_s, most, late, long))
                # A redirection would turn a POST into a GET, and lead the key elsewhere.
                settings: dict[str, Any] = {
                    "stream": True,
                    "allow_redirects": False,
                    "headers": self._headers,
                }
                settings |= {"params": self._query, "auth": self._login}
                with session.request(method, url, json=body, timeout=limits, **settings) as response:
                    if "Content-Encoding" in response.headers:  # a small answer may be a large one then
                        raise protocol.PeerError(f"{url} compresses its answers, which was not asked for")
                    yield response
        except (requests.RequestException, HTTPError) as error:
            raise self._no_response_error(error, url) from error

    def _no_response_error(self, error: Exception, url: str) -> protocol.PeerError:
        cause = error if isinstance(error, HTTPError) else error.args[0] if error.args else None
        if isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError):
            return protocol.PeerError(f"no answer from {url} within {self._answer_s:g} s")
        if isinstance(cause, MaxRetryError):
            return protocol.PeerGone(f"no server answers at {self.root}")
        if isinstance(error, (requests.ConnectionError, HTTPError)):
            return protocol.PeerError(f"{url} closed the connection early")
        return protocol.PeerError(f"{url} cannot be asked ({type(error).__name__})")

    def _require_success(self, response: requests.Response, path: str) -> None:
        status = response.status_code
        if _is_ok(response):
            return
        if status in (401, 403):
            why = f"; set its key in {KEY}"
        elif response.is_redirect:
            why = f", to be found at {protocol.shortened(response.headers['Location'])}: give that URL"
        elif status in _ABSENT:
            why = "; give the URL of the server's root or of /v1"
        else:
            why = f": {protocol.shortened(_error_message(response.content))}"
        kind = Absent if status in _ABSENT else protocol.PeerError
        raise kind(f"{self.root}{path} answers {status}{why}")

    def _json(self, response: requests.Response, path: str) -> Any:
        self._require_success(response, path)
        try:
            return protocol.loaded(response.content)
        except protocol.ProtocolError as error:
            kind = response.headers.get("Content-Type", "nothing")
            raise protocol.PeerError(f"{self.root}{path} answers {kind}, {error}") from None

    def _object(self, content: Any, path: str) -> dict[str, Any]:
        if not isinstance(content, dict):
            shown = protocol.shortened(json.dumps(content))
            raise protocol.PeerError(f"{self.root}{path} answers something other than an object: {shown}")
        return content


def _is_ok(response: requests.Response) -> bool:
    return 200 <= int(response.status_code) < 300


def _error_message(page: bytes) -> str:
    """The server's, or the beginning of its page."""
    try:
        content = protocol.loaded(page)
    except protocol.ProtocolError:
        return str(page[:_SHOWN_BYTES], errors="replace")
    error = content.get("error", content) if isinstance(content, dict) else content
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


# --- the peer ---


ANSWER_S = 300.0

NEAR_TIE = 0.5
"""Two logits this near may change places with another precision or batch, so they prove nothing."""


_MORE_THAN_STREAMED = 1.5
"""Times the tokens of the text, tokenized again, above which some that were counted did not come: drawn text
often has more tokens than its shortest spelling."""


class _Streamed:
    """What has come of one stream, and how many tokens that are."""

    def __init__(self, texts: dialects.Texts | None) -> None:
        self._texts = texts
        self._pieces: list[str] = []
        self._by_event: int | None = 0  # None where an event does not say how many it adds
        self._saying = 0  # events with text: no more than tokens
        self._total: int | None = None  # as the server counts
        self._unspoken = 0
        self._has_thought = False
        self._has_come = False
        self.finish: str | None = None

    def add(self, heard: dialects.Heard) -> int | None:
        """Take an event; return the tokens so far, None where nobody has counted them."""
        self.finish = heard.finish or self.finish
        self._unspoken = heard.unspoken or self._unspoken
        self._has_thought |= heard.thought
        self._has_come |= heard.text
        self._pieces.append(heard.said)
        self._saying += bool(heard.said)
        if heard.text and self._by_event is not None:
            self._by_event = None if heard.added is None else self._by_event + heard.added
        if heard.tokens is not None:
            self._total = heard.tokens
            return heard.tokens
        return self._by_event

    def correction(self) -> dialects.Heard | None:
        """What is to be known at the end: a count where there is none, or what did not come."""
        text = dialects.characters("".join(self._pieces))
        again = None if self._texts is None else len(self._texts.ids(text))
        if self._total is None or self._total < (self._by_event or self._saying):
            if again is None or (self._total is None and self._by_event is not None):
                return None
            return dialects.Heard(text=False, tokens=again, retokenised=True)
        missing = 0
        if self._unspoken and not self._has_thought:
            missing = min(self._unspoken, self._total)
        elif self._by_event:
            missing = self._total - self._by_event
        elif not self._has_come:
            missing = self._total
        elif again and self._total > again * _MORE_THAN_STREAMED + 1:
            missing = self._total - again
        if missing <= 1:  # a token that ends an output has no text
            return None
        return dialects.Heard(text=False, tokens=self._total - missing, unstreamed=missing)


class Server:
    """A ``Peer`` over HTTP, given up by ``Failures``; several threads may ask at once."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        texts: dialects.Texts | None = None,
        *,
        answer_s: float = ANSWER_S,
        alone: bool = True,
        prefix_cache: bool = False,
    ) -> None:
        self.url = url
        self._http = HttpClient(url.rstrip("/").removesuffix("/v1"), answer_s)
        self._model, self._texts, self._alone = model, texts, alone
        self._prefix_cache = prefix_cache
        self._dialect: dialects.Dialect | None = None
        self._failures = Failures()
        self._lock = threading.Lock()

    def describe(self) -> protocol.Described:
        return self._detected_once().described

    @property
    def takes_ids(self) -> bool:
        """Whether a prompt is sent as token ids."""
        return self._detected_once().takes_ids

    def together(self, wave: protocol.Wave) -> protocol.Together:
        """See ``Batching.together``: a thread a request, and streams are closed to abort."""
        dialect = self._detected_once()

        def send(ask: protocol.Ask, hear: Hear | None) -> protocol.Answer | None:
            if hear is None:
                return dialect.answer(self._http.post(dialect.path, dialect.body(ask, stream=False)), ask)
            with closing(self._heard_events(ask)) as events:
                for place, heard in enumerate(events, 1):
                    if hear(place if heard.tokens is None else heard.tokens):
                        break
            return None

        return self._failures.wave(lambda: threaded(wave, send))

    def generate(self, ask: protocol.Ask) -> protocol.Answer:
        """See ``Peer.generate``; the answer is not ``checked`` yet."""
        dialect = self._detected_once()
        with self._failures.counted():
            return self._generated(dialect, ask)

    def stream(self, ask: protocol.Ask) -> Generator[dialects.Heard]:
        """What arrives of one output while it is written; ``tokens`` counts up where that is known."""
        self._detected_once()
        with self._failures.counted():
            yield from self._heard_events(ask)

    def _heard_events(self, ask: protocol.Ask) -> Generator[dialects.Heard]:
        """What arrives of a stream, with tokens counted from the text where the server gives none.

        What the server counted beyond what came is told last, apart.
        """
        dialect = self._detected_once()
        streamed = _Streamed(self._texts)
        event: dict[str, Any] = {}
        for event in self._http.events(dialect.path, dialect.body(ask, stream=True)):
            heard = dialect.heard(event)
            yield replace(heard, tokens=streamed.add(heard))
        dialects.require_ended(streamed.finish, event)
        if (correction := streamed.correction()) is not None:
            yield correction

    def close(self) -> None:
        """Do nothing, see ``Peer.close``: the server is not ours to stop."""

    def _detected_once(self) -> dialects.Dialect:
        with self._lock:
            if self._dialect is None:
                try:
                    self._dialect = detected(self._http, self._model, self._texts, streams=not self._alone)
                    self._dialect.keep_prompts(self._prefix_cache)
                except protocol.PeerGone:
                    raise
                except protocol.PeerError as error:
                    raise protocol.PeerGone(str(error)) from error
            return self._dialect

    def _generated(self, dialect: dialects.Dialect, ask: protocol.Ask) -> protocol.Answer:
        counted = self.counting() if self._alone else None
        started = time.perf_counter()
        content = self._http.post(dialect.path, dialect.body(ask, stream=False))
        wall_ms = (time.perf_counter() - started) * 1e3
        answer = replace(dialect.answer(content, ask), wall_ms=wall_ms)
        if counted is None or answer.drafted is not None:
            return answer
        drafted, accepted = counted(len(answer.output_ids))
        return replace(answer, drafted=drafted, accepted=accepted)

    def counting(self) -> Callable[[int], Counted]:
        """Read the server's counters, and return a function that reads them again.

        It is given how many tokens the server wrote meanwhile, and answers how many draft tokens were
        proposed and kept, or None twice where the server does not report it, or served others too.
        """
        dialect = self._detected_once()
        before = self._counter_sums(dialect)
        if before is None:
            return lambda tokens: (None, None)
        return lambda tokens: counted_between(before, lambda: self._counter_sums(dialect), tokens)

    def _counter_sums(self, dialect: dialects.Dialect) -> Tally | None:
        """The sums of ``counters`` in a page of Prometheus' text format.

        None where the page cannot be read, or one is missing, negative or not a number: the format knows
        ``NaN`` and ``+Inf``.
        """
        sums: dict[str, float] = {}
        try:
            page = self._http.text("/metrics") if dialect.counters else None
        except protocol.PeerGone:
            raise
        except protocol.PeerError:
            return None
        for line in (page or "").splitlines():
            if (sample := _SAMPLE.match(line)) is not None:
                value = float(sample["value"]) if _VALUE.fullmatch(sample["value"]) else math.nan
                sums[sample["name"]] = sums.get(sample["name"], 0.0) + value
        counts = [sums.get(name, math.nan) for name in dialect.counters]
        if not counts or not all(0 <= count < math.inf for count in counts):
            return None
        written, drafted, accepted = map(int, counts)
        return written, drafted, accepted


def require_same_model(peer: protocol.Peer, rows: Sequence[tuple[list[int], int, float]], url: str) -> None:
    """Refuse a server whose greedy tokens are not the target's.

    Rows are prompts, the target's best next token, and how far its logit exceeds the second; of rows nearer
    than ``NEAR_TIE`` another precision may decide, so they are left out.
    """
    judged = [(prompt, best) for prompt, best, gap in rows if gap >= NEAR_TIE]
    if not judged:
        why = f"no prompt of {len(rows)} distinguishes the target from another model."
        raise UnavailableError(why, flag="--engine", remedy="Give more prompts.")
    wrong = sum(first_token(peer, prompt, [best], url) != best for prompt, best in judged)
    if wrong:
        raise UnavailableError(
            f"{url} serves another model than the target: at {wrong} of {len(judged)} prompts its most "
            "probable token differs.",
            flag="--engine",
            remedy="Name the server of the target, or the target of the server.",
        )


def first_token(peer: protocol.Peer, prompt: list[int], stop_ids: list[int], url: str) -> int | None:
    """The most probable next token according to a server; None for a stop token that it leaves out."""
    try:
        ids = peer.generate(
            protocol.Ask(prompt, 1, stop_ids, sampling=protocol.Sampling(greedy=True))
        ).output_ids
    except protocol.PeerError as error:
        raise UnavailableError(f"{url}: {error}.", flag="--engine") from error
    return ids[0] if ids else None


_LATE_S = 1.0
"""Servers count shortly after they have answered."""


Tally = tuple[int, int, int]
"""Sums of a dialect's ``counters`` since the server's start, over all of their labels."""

Counted = tuple[int, int] | tuple[None, None]


def counted_between(before: Tally, now: Callable[[], Tally | None], tokens: int) -> Counted:
    """The draft tokens proposed and kept during a request of so many tokens.

    None where the server wrote another number of tokens meanwhile, for it has other clients or has not
    counted, and where it kept fewer than none or more than it proposed.
    """
    deadline = time.monotonic() + _LATE_S
    while (after := now()) is not None:
        written, drafted, accepted = (b - a for a, b in zip(before, after, strict=True))
        if written == tokens:
            return (drafted, accepted) if 0 <= accepted <= drafted else (None, None)
        if written > tokens or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return None, None


def detected(
    http: HttpClient, model: str | None, texts: dialects.Texts | None, *, streams: bool = False
) -> dialects.Dialect:
    """The dialect of a server and of one model that it serves.

    Args:
        streams: it will be asked for streams, which may take other fields than whole answers do.
    """
    props = http.find("/props")
    answer = http.get("/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not (isinstance(cards, list) and cards and all(isinstance(card, dict) for card in cards)):
        raise protocol.PeerError(f"{http.root}/v1/models lists no model: {protocol.shortened(repr(answer))}")
    if props is not None and "default_generation_settings" in props:
        return dialects.LlamaCppDialect(props, dialects.whole(dialects.part(cards[0], "meta", "n_vocab")))
    info = http.find("/get_server_info") or http.find("/server_info")
    if info is not None and "version" in info:
        return dialects.SglangDialect(info)
    name = _chosen_model(cards, model)
    version = str((http.find("/version") or {}).get("version", "unknown"))
    if cards[0].get("owned_by") == "vllm":
        return dialects.VllmDialect(name, version)
    dialect = _openai_dialect(http, name, version, texts)
    if streams:
        dialect.fit_streams(lambda fields: http.streams(dialect.path, fields))
    return dialect


def _chosen_model(cards: list[dict[str, Any]], model: str | None) -> str:
    """A LoRA adapter in vLLM names its model as its parent."""
    names = [str(card.get("id")) for card in cards]
    if model in names:
        return str(model)
    if model is None and len([card for card in cards if not card.get("parent")]) == 1:
        return names[0]
    fault = "no model is named" if model is None else f"{model!r} is not served"
    raise protocol.PeerGone(f"{fault}; it serves {', '.join(names)}: choose with :model=NAME")


def _openai_dialect(
    http: HttpClient, model: str, version: str, texts: dialects.Texts | None
) -> dialects.Dialect:
    info = http.find("/info") or {}
    engine = "TGI" if "model_id" in info and "max_total_tokens" in info else "OpenAI API"
    version = str(info.get("version", version))
    probe = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    path = dialects.OpenAi.path
    try:
        answer = http.accepts(path, probe)
    except Absent as error:
        return _chat_dialect(http, model, engine, version, texts, error)
    plain = {name: value for name, value in probe.items() if name != "return_token_ids"}
    if answer is None and http.accepts(path, plain | {"prompt": "a"}) is None:
        with suppress(Absent):
            return _chat_dialect(http, model, engine, version, texts)
    if answer is not None and isinstance(dialects.part(answer, "choices", 0, "token_ids"), list):
        dialects.token_ids(dialects.part(answer, "choices", 0, "token_ids"), "choices[0].token_ids")
        return dialects.VllmDialect(model, version)
    ids_in = answer is not None and dialects.part(answer, "usage", "prompt_tokens") in (None, 1)
    return dialects.OpenAi(model, engine, version, texts, ids_in=ids_in)


def _chat_dialect(
    http: HttpClient,
    model: str,
    engine: str,
    version: str,
    texts: dialects.Texts | None,
    absent: Absent | None = None,
) -> dialects.Dialect:
    """Identify a server that has only chat; raise ``absent``, or its own error, where it lacks that too.

    Some servers know ``max_completion_tokens`` alone, and some refuse fields that they do not know.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "a"}]}
    path, answer, limit = dialects.Chat.path, None, ""
    for limit, ids in product(("max_tokens", "max_completion_tokens"), ({"return_token_ids": True}, {})):
        try:
            answer = http.accepts(path, {**body, limit: 1, **ids})
        except Absent as neither:
            raise absent or neither from None
        if answer is not None:
            break
    else:
        http.post(path, {**body, limit: 1})  # which says why it is refused
    if not isinstance(texts, dialects.Conversations):
        raise protocol.PeerGone(
            f"it serves chat alone ({path}): its own template makes the prompt, so its texts cannot be "
            "compared with the target's. With --concurrency 1 its speed is measured"
        )
    ids_out = isinstance(dialects.part(answer, "choices", 0, "token_ids"), list)
    return dialects.Chat(model, f"{engine} (chat)", version, texts, limit, ids_out=ids_out)

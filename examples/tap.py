"""Write a log for `spsbench audit --follow` inside vLLM's server: an ASGI middleware of one file.

    export SPSBENCH_TAP=requests.jsonl PYTHONPATH=examples
    vllm serve MODEL --generation-config vllm --middleware tap.Tap
    spsbench audit --follow requests.jsonl --target MODEL --every 100

Each completion and chat completion that ends is a line, streamed or not. Token ids are asked for, so that
clients see two fields more. What else is asked for must leave the law alone: a request with a penalty, a
grammar or tools is served and not written. --generation-config vllm: what a request leaves out is then vLLM's
default, and not the checkpoint's. Needs nothing but Python, and works in any ASGI server with vLLM's
`return_token_ids`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HARMLESS = {
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "seed", "stop", "user"),
    *("stream", "stream_options", "logprobs", "top_logprobs", "return_token_ids", "request_id", "priority"),
    *("metadata", "store"),
}
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
NEUTRAL: dict[str, float] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), 0),
    **dict.fromkeys(("repetition_penalty", "n", "best_of"), 1),
    **dict.fromkeys(("echo", "ignore_eos"), False),
}
"""Fields that change the law, or what is returned, unless they say this."""


def unlike(asked: Message) -> str | None:
    """The field for which a request is not written."""
    set_ = {name: value for name, value in asked.items() if value is not None and name not in HARMLESS}
    odd = (name for name, value in set_.items() if name not in DEFAULTS and NEUTRAL.get(name) != value)
    return next(odd, None)


def sampling_of(asked: Message) -> dict[str, Any]:
    """The sampling of a request, as a line of the log has it."""
    drawn = DEFAULTS | {name: asked[name] for name in DEFAULTS if asked.get(name) is not None}
    return {"greedy": True} if drawn["temperature"] == 0 else drawn | {"top_k": max(0, drawn["top_k"])}


def texts_of(answer: bytes) -> Iterator[dict[str, Any]]:
    """Prompt and completion ids of each choice that ended, of one JSON document or of a stream's events."""
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    found: dict[int, dict[str, Any]] = {}
    ended = set()
    for piece in map(json.loads, events or [answer]):
        for choice in piece.get("choices", ()):
            index = choice["index"]
            text = found.setdefault(index, {"id": f"{piece['id']}-{index}", "completion_ids": []})
            if prompt := choice.get("prompt_token_ids") or piece.get("prompt_token_ids"):
                text["prompt_ids"] = prompt
            text["completion_ids"] += choice.get("token_ids") or []
            if choice.get("finish_reason") in ("stop", "length"):
                ended.add(index)
    return (text for index, text in found.items() if index in ended and "prompt_ids" in text)


class Tap:
    """Pass everything through, and append what was served to the file of SPSBENCH_TAP."""

    def __init__(self, app: App) -> None:
        self._app, self._path = app, os.environ["SPSBENCH_TAP"]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/completions"):
            await self._app(scope, receive, send)
            return
        came_s, body, message = time.time(), b"", await receive()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
            message = await receive()
        asked, why = self._asked(body)
        if why is None:
            body = json.dumps({**asked, "return_token_ids": True}).encode()
        kept, pending = list[bytes](), [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        async def seen(message: Message) -> None:
            if why is None:
                kept.append(message.get("body", b""))
            await send(message)

        rest = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        headers = [*rest, (b"content-length", str(len(body)).encode())]
        await self._app({**scope, "headers": headers}, again, seen)
        if why is None:
            self._write(b"".join(kept), asked, came_s)

    def _asked(self, body: bytes) -> tuple[Message, str | None]:
        try:
            asked = json.loads(body)
            why = unlike(asked)
        except (ValueError, AttributeError):
            return {}, "no JSON object"
        if why is not None:
            logging.getLogger("tap").warning("not written, it has %s", why)
        return asked, why

    def _write(self, answer: bytes, asked: Message, came_s: float) -> None:
        try:
            about = {"time": came_s, "sampling": sampling_of(asked)}
            lines = [json.dumps(text | about) for text in texts_of(answer)]
        except (ValueError, KeyError, TypeError):  # an error of the server or the client: nothing was drawn
            return
        with open(self._path, "a", encoding="utf-8") as log:  # noqa: PTH123 -- one write, so that lines stay whole
            log.write("".join(f"{line}\n" for line in lines))

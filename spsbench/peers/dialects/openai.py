"""Any other server with ``/v1/completions``: text out, and text in where it takes no token ids."""

from __future__ import annotations

from typing import Any

from spsbench.peers.asking import request_seed
from spsbench.peers.dialects.dialect import Counters, Heard, part, whole
from spsbench.peers.peer import PeerError
from spsbench.peers.protocol import LENGTH, STOP, Answer, Ask, Described
from spsbench.peers.texts import Texts


class OpenAi:
    """What the OpenAI API has, and nothing else: top-k, min-p and most penalties cannot be set."""

    path = "/v1/completions"
    counters: Counters | None = None

    def __init__(self, model: str, engine: str, version: str, texts: Texts | None, *, ids_in: bool) -> None:
        self._model, self._texts, self._ids_in = model, texts, ids_in
        self.described = Described(
            engine=engine,
            version=version,
            limits=[
                "It answers with text, which is tokenized again: its ids may differ from those drawn.",
                *([] if ids_in else ["It takes text, and reads a prompt with its own tokenizer."]),
                "Its own EOS always ends an output; top-k, min-p and repetition penalties are its defaults.",
                "It does not say by which rule it keeps drafted tokens, nor in what precision it runs.",
            ],
        )

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        """See ``Dialect.body``."""
        drawn = ask.sampling
        if drawn.top_k and not drawn.greedy:
            raise PeerError(f"its API has no top-k, and top-k {drawn.top_k} is asked for")
        prompt: str | list[int] = ask.prompt_ids
        if not self._ids_in:
            prompt = self._tokenizer.text(ask.prompt_ids)
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": ask.max_new_tokens,
            "temperature": 0.0 if drawn.greedy else drawn.temperature,
            **({} if drawn.greedy or drawn.top_p == 1.0 else {"top_p": drawn.top_p}),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": request_seed(ask.seed),
            **({"stop": ask.stop} if ask.stop else {}),
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }

    def answer(self, found: dict[str, Any], ask: Ask) -> Answer:
        """See ``Dialect.answer``. Where it counts the prompt's tokens, that must be as many as were meant."""
        text = part(found, "choices", 0, "text")
        if not isinstance(text, str):
            raise PeerError("its answer holds no choices[0].text")
        read = whole(part(found, "usage", "prompt_tokens"))
        if read not in (None, len(ask.prompt_ids)):
            raise PeerError(f"it read a prompt of {read} tokens where {len(ask.prompt_ids)} were sent")
        stopped = part(found, "choices", 0, "finish_reason") == STOP
        return Answer(
            self._tokenizer.ids(text), STOP if stopped else LENGTH, hidden_stop=stopped, retokenised=True
        )

    def heard(self, event: dict[str, Any]) -> Heard:
        """See ``Dialect.heard``."""
        return Heard(
            text=bool(part(event, "choices", 0, "text")),
            tokens=whole(part(event, "usage", "completion_tokens")),
        )

    @property
    def _tokenizer(self) -> Texts:
        if self._texts is None:
            raise PeerError("it answers with text, and there is no tokenizer to make ids of it")
        return self._texts

"""An engine that is already running, behind an OpenAI-compatible server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from spsbench.errors import UnavailableError
from spsbench.peers.dialects.detection import detected
from spsbench.peers.dialects.dialect import Dialect, Heard
from spsbench.peers.http import Http
from spsbench.peers.peer import Peer, PeerError, PeerGone
from spsbench.peers.protocol import Answer, Ask, Described, Sampling
from spsbench.peers.tally import Tally, counted_between, read_tally
from spsbench.peers.texts import Texts
from spsbench.peers.worker import MOST_FAILURES

ANSWER_S = 300.0

NEAR_TIE = 0.5
"""Two logits this near may change places with another precision or batch, so they prove nothing."""


class Server:
    """A ``Peer`` over HTTP. Several threads may ask at once.

    After ``MOST_FAILURES`` requests in a row without an answer it is given up.

    Args:
        answer_s: how long an answer may take, in seconds.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        texts: Texts | None = None,
        *,
        answer_s: float = ANSWER_S,
        alone: bool = True,
    ) -> None:
        self.url = url
        self._http = Http(url.rstrip("/").removesuffix("/v1"), answer_s)
        self._model, self._texts, self._alone = model, texts, alone
        self._dialect: Dialect | None = None
        self._failed = 0
        self._lock = threading.Lock()

    def describe(self) -> Described:
        """See ``Peer.describe``."""
        return self._spoken().described

    def generate(self, ask: Ask) -> Answer:
        """See ``Peer.generate``; the answer is not ``checked`` yet."""
        dialect = self._spoken()
        try:
            found = self._generated(dialect, ask)
        except PeerError as error:
            raise self._failure(error) from error
        self._failed = 0
        return found

    def stream(self, ask: Ask) -> Iterator[Heard]:
        """What is heard of one output, as it is written; ``tokens`` counts up wherever that is known."""
        dialect = self._spoken()
        written: int | None = 0
        try:
            for event in self._http.events(dialect.path, dialect.body(ask, stream=True)):
                heard = dialect.heard(event)
                if heard.tokens is not None:
                    written = heard.tokens
                elif written is not None and heard.text:
                    written = None if heard.added is None else written + heard.added
                yield replace(heard, tokens=written)
        except PeerError as error:
            raise self._failure(error) from error
        self._failed = 0

    def close(self) -> None:
        """See ``Peer.close``: the server is not ours to end."""

    def _spoken(self) -> Dialect:
        with self._lock:
            if self._dialect is None:
                try:
                    self._dialect = detected(self._http, self._model, self._texts)
                except PeerGone:
                    raise
                except PeerError as error:
                    raise PeerGone(str(error)) from error
            return self._dialect

    def _generated(self, dialect: Dialect, ask: Ask) -> Answer:
        counted = self.counting() if self._alone else None
        started = time.perf_counter()
        found = self._http.post(dialect.path, dialect.body(ask, stream=False))
        wall_ms = (time.perf_counter() - started) * 1e3
        answer = replace(dialect.answer(found, ask), wall_ms=wall_ms)
        if counted is None or answer.drafted is not None:
            return answer
        drafted, accepted = counted(len(answer.output_ids))
        return replace(answer, drafted=drafted, accepted=accepted)

    def counting(self) -> Callable[[int], tuple[int, int] | tuple[None, None]]:
        """Look at what the server counts; what is returned looks again.

        It is given how many tokens the server wrote meanwhile, and answers how many draft tokens were
        proposed and kept, or None twice where the server does not report it, or served others too.
        """
        dialect = self._spoken()
        before = self._tally(dialect)
        if before is None:
            return lambda tokens: (None, None)
        return lambda tokens: counted_between(before, lambda: self._tally(dialect), tokens) or (None, None)

    def _tally(self, dialect: Dialect) -> Tally | None:
        if dialect.counters is None:
            return None
        return read_tally(self._http.text("/metrics"), dialect.counters)

    def _failure(self, error: PeerError) -> PeerError:
        """The error, or that it was one too many."""
        if isinstance(error, PeerGone):
            return error
        self._failed += 1
        if self._failed < MOST_FAILURES:
            return error
        return PeerGone(f"{self._failed} requests in a row failed, the last: {error}")


def require_same_model(peer: Peer, rows: Sequence[tuple[list[int], int, float]], url: str) -> None:
    """Refuse a server whose greedy tokens are not the target's.

    Args:
        rows: prompts as token ids; the target's most probable next token; by how much its logit exceeds the
            second one. Rows nearer than ``NEAR_TIE`` are left out: another precision may decide them
            otherwise.
    """
    judged = [(prompt, best) for prompt, best, gap in rows if gap >= NEAR_TIE]
    if not judged:
        raise UnavailableError(
            f"no prompt of {len(rows)} distinguishes the target from another model.",
            flag="--engine",
            remedy="Give more prompts.",
        )
    wrong = sum(first_token(peer, prompt, [best], url) != best for prompt, best in judged)
    if wrong:
        raise UnavailableError(
            f"{url} serves another model than the target: at {wrong} of {len(judged)} prompts its most "
            "probable token differs.",
            flag="--engine",
            remedy="Name the server of the target, or the target of the server.",
        )


def first_token(peer: Peer, prompt: list[int], stop_ids: list[int], url: str) -> int | None:
    """The most probable next token, as a server sees it; None for a stop token that it keeps back."""
    try:
        ids = peer.generate(Ask(prompt, 1, stop_ids, sampling=Sampling(greedy=True))).output_ids
    except PeerError as error:
        raise UnavailableError(f"{url}: {error}.", flag="--engine") from error
    return ids[0] if ids else None

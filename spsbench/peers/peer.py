"""An external engine as its caller sees it, and what its answers must satisfy."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from spsbench.peers.protocol import LENGTH, STOP, Answer, Ask, Described, shortened

_MOST_A_TOKEN = 1000
"""Of loops, or of draft tokens, for one token of an output."""


class PeerError(Exception):
    """A request has no valid answer; the text says why, in a clause. The next one may have one."""


class PeerGone(PeerError):
    """The engine cannot be started, or does not stay up."""


class Peer(Protocol):
    """An external engine with one setting: a target, with a draft and K or without."""

    def describe(self) -> Described:
        """What it is and runs with; the models are loaded at the first call."""
        ...

    def generate(self, ask: Ask) -> Answer:
        """One sequence, as ``checked`` demands."""
        ...

    def close(self) -> None:
        """End it; nothing happens where it has ended."""
        ...


def checked(answer: Answer, ask: Ask, vocab_size: int) -> Answer:
    """An answer that fits what was asked, with the token that ended it where that is known.

    Retokenised ids need not be as many as were drawn, so their number is not checked.
    """
    ids = answer.output_ids
    for name in ("decoded", "loops", "drafted", "accepted"):
        count = getattr(answer, name)
        if count is not None and not 0 <= count <= _MOST_A_TOKEN * (ask.max_new_tokens + 1):
            raise PeerError(f"its {name} is {count} where {ask.max_new_tokens} tokens were asked for")
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise PeerError(f"it returned token {wrong} of a vocabulary of {vocab_size}")
    if len(ids) > ask.max_new_tokens and not answer.retokenised:
        raise PeerError(f"it returned {len(ids)} tokens where {ask.max_new_tokens} were asked for")
    _check_drafted(answer, vocab_size)
    early = next((place for place, token in enumerate(ids[:-1]) if token in ask.stop_ids), None)
    if early is not None:
        raise PeerError(f"it went on after the stop token {ids[early]} at {early}")
    if answer.finish == STOP:
        return _with_stop(answer, ask)
    if answer.finish != LENGTH:
        raise PeerError(f"finish is {shortened(answer.finish)} and neither {STOP!r} nor {LENGTH!r}")
    if len(ids) < ask.max_new_tokens and not answer.retokenised:
        raise PeerError(f"it ended after {len(ids)} of {ask.max_new_tokens} tokens without a stop token")
    return answer


def _check_drafted(answer: Answer, vocab_size: int) -> None:
    """Raise PeerError where ``drafted_ids`` do not fit what was accepted."""
    drafted, accepted = answer.drafted_ids, answer.accepted_per_loop
    if drafted is None:
        return
    if accepted is None or len(drafted) != len(accepted):
        raise PeerError("it returned drafted_ids without as many accepted_per_loop")
    if any(not 0 <= token < vocab_size for loop in drafted for token in loop):
        raise PeerError(f"it drafted a token outside the vocabulary of {vocab_size}")
    if any(not 0 <= kept <= len(loop) for kept, loop in zip(accepted, drafted, strict=True)):
        raise PeerError("it accepted more tokens of a loop than it had drafted")


def _with_stop(answer: Answer, ask: Ask) -> Answer:
    """A text without its last draw would be a biased one: what ended it is part of it."""
    ids = answer.output_ids
    if ids and ids[-1] in ask.stop_ids:
        return answer
    if not answer.hidden_stop:
        raise PeerError("it stopped without a stop token, and does not say that it kept one back")
    if len(ask.stop_ids) != 1:
        raise PeerError(f"it kept its stop token back, and there are {len(ask.stop_ids)} of them")
    return replace(answer, output_ids=[*ids, ask.stop_ids[0]], hidden_stop=False)

"""What a program writes is an answer only if it was asked before. The program's side is played here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from spsbench.parts.judge import worker
from spsbench.parts.judge.inside import labels, wire
from spsbench.parts.judge.inside.check import ProgramOver
from spsbench.parts.judge.worker import Session

UNASKED = "failed: ProtocolError: an answer to no question"
RIGHT, WRONG = wire.dumps(["value", 4, None]), wire.dumps(["value", 0, None])

Peer = Callable[[Callable[[int, int], None]], Session]
"""Starts a program's side, which gets its descriptors of requests and replies; the judge's side."""


@pytest.fixture
def against() -> Iterator[Peer]:
    descriptors: list[int] = []
    threads: list[Thread] = []

    def start(play: Callable[[int, int], None]) -> Session:
        asked, ask = os.pipe()
        hear, answer = os.pipe()
        descriptors.extend((asked, ask, hear, answer))
        for mine in (ask, hear):
            os.set_blocking(mine, False)
        threads.append(Thread(target=play, args=(asked, answer)))
        threads[-1].start()
        return Session(ask, hear)

    yield start
    for thread in threads:
        thread.join(20)
    for descriptor in descriptors:
        os.close(descriptor)


def question(requests: int) -> bytes:
    return wire.receive(requests)[: wire.QUESTION_BYTES]


def ahead(message: bytes) -> Callable[[int, int], None]:
    """Answer the first question, and the second before it is asked."""

    def play(requests: int, replies: int) -> None:
        asked = question(requests)
        wire.send(replies, asked + WRONG)
        wire.receive(requests)  # the test's word that the answer was read
        wire.send(replies, asked + message)

    return play


def call(judge: Session) -> object:
    return wire.loads(judge.exchange(wire.dumps([[2], {}])))


def call_after(judge: Session, hear: int) -> object:
    """Two calls; what the program wrote between them is there before the second."""
    assert call(judge) == ["value", 0, None]
    wire.send(judge._requests, b"go on")
    wire._wait(hear, 1, judge.deadline)
    return call(judge)


def test_an_answer_written_ahead_is_no_answer(against: Peer) -> None:
    judge = against(ahead(RIGHT))
    with pytest.raises(ProgramOver, match=UNASKED):
        call_after(judge, judge._replies)


def test_nor_is_one_that_comes_while_the_question_is_sent(
    against: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "waiting", lambda _: False)  # as if it had come just after this look
    judge = against(ahead(RIGHT))
    with pytest.raises(ProgramOver, match=UNASKED):
        call_after(judge, judge._replies)


def test_without_both_it_would_count(against: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "waiting", lambda _: False)
    monkeypatch.setattr(worker, "_new_question", lambda: b"always 8")
    judge = against(ahead(RIGHT))
    assert call_after(judge, judge._replies) == ["value", 4, None]


def test_half_an_answer_ahead_is_refused_too(against: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(requests: int, replies: int) -> None:
        wire.send(replies, question(requests) + WRONG)
        wire.receive(requests)
        os.write(replies, b"\0")

    judge = against(play)
    with pytest.raises(ProgramOver, match=UNASKED):
        call_after(judge, judge._replies)


def test_a_question_is_never_asked_twice(against: Peer) -> None:
    asked = []

    def play(requests: int, replies: int) -> None:
        for _ in range(50):
            asked.append(question(requests))
            wire.send(replies, asked[-1] + RIGHT)

    judge = against(play)
    assert [call(judge) for _ in range(50)] == [["value", 4, None]] * 50
    assert len(set(asked)) == 50


def test_an_answer_without_its_question_is_refused(against: Peer) -> None:
    judge = against(lambda requests, replies: wire.send(replies, question(requests)[:0] + RIGHT))
    with pytest.raises(ProgramOver, match=UNASKED):
        call(judge)


def test_a_program_that_ended_is_told_from_one_that_lied(against: Peer) -> None:
    def end(requests: int, replies: int) -> None:
        with Path(os.devnull).open("wb") as elsewhere:
            os.dup2(elsewhere.fileno(), replies)  # it holds the pipe no more

    judge = against(end)
    with pytest.raises(ProgramOver, match=labels.ENDED):
        call(judge)

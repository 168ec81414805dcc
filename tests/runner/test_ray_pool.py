"""What the pool makes of Ray's answers, without Ray's processes."""

from __future__ import annotations

from typing import Any

import pytest

from spsbench.base.errors import SpsbenchError, UnavailableError
from spsbench.runner.worker import Block, Completed, Free, Item, Lost, RayPool, _places


class Method:
    """What ``actor.method.remote`` is: each call answers the next of what was prepared."""

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers
        self.calls = 0

    def remote(self, *given: object) -> object:
        self.calls += 1
        return Reply(self._answers.pop(0))


class Reply:
    def __init__(self, value: object) -> None:
        self.value = value


class Actor:
    def __init__(self, *answers: object) -> None:
        self.work = self.introduce = Method(list(answers))


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray, which waits for what a method answers; imported by the process that runs these tests alone."""
    ray = pytest.importorskip("ray")

    def wait(pending: list[Reply], num_returns: int, timeout: float | None = None) -> object:
        told = [reply for reply in pending if reply.value != "silence"]
        return told[:num_returns], []

    def get(reply: Reply) -> object:
        if isinstance(reply.value, Exception):
            raise reply.value
        return reply.value

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    return ray


KEY = ("p0", 0, "ars")
BLOCK = Block("measure", (Item(KEY),))


def test_a_worker_is_asked_for_its_next_item_only_when_the_last_was_taken() -> None:
    actor = Actor((KEY, "sample"), None)
    pool = RayPool([actor])
    pool.give(0, BLOCK)
    assert pool.wait() == Completed(0, KEY, "sample")
    assert actor.work.calls == 1, "not before the sample is on the disk"
    assert pool.wait() == Free(0)
    assert actor.work.calls == 2


def test_whoever_dies_is_lost_and_no_more_among_the_workers(ray: Any) -> None:
    pool = RayPool([Actor(ray.exceptions.ActorDiedError()), Actor()])
    pool.give(0, BLOCK)
    event = pool.wait()
    assert isinstance(event, Lost)
    assert event.worker == 0
    assert pool.workers == [1]


def test_a_workers_own_error_is_not_taken_for_a_loss(ray: Any) -> None:
    own = SpsbenchError("the sandbox failed to start twice")
    pool = RayPool([Actor(ray.exceptions.RayTaskError("work", "traceback", own))])
    pool.give(0, BLOCK)
    with pytest.raises(SpsbenchError, match="the sandbox failed"):
        pool.wait()


def test_a_connection_that_is_lost_says_how_to_go_on() -> None:
    pool = RayPool([Actor(ConnectionError("the head node is gone"))])
    pool.give(0, BLOCK)
    with pytest.raises(SpsbenchError, match=r"connection to the cluster was lost.*--resume"):
        pool.wait()


def test_who_does_not_begin_in_time_is_sent_away() -> None:
    pool = RayPool([Actor("silence"), Actor("here")])
    assert pool.ask("introduce", within_s=1.0) == {1: "here"}
    assert pool.workers == [1]


def test_without_anybody_the_reason_is_told() -> None:
    pool = RayPool([Actor("silence")])
    with pytest.raises(UnavailableError, match=r"no worker of 1 is there: it did not answer within 1 s\."):
        pool.ask("introduce", within_s=1.0)


@pytest.mark.parametrize(
    ("resources", "threads", "gpu", "places"),
    [
        ({"CPU": 8.0}, 3, False, 2),
        ({"CPU": 2.0}, 3, False, 0),
        ({}, 1, False, 0),
        ({"CPU": 8.0, "GPU": 2.0}, 1, True, 2),
        ({"CPU": 8.0}, 1, True, 0),
    ],
)
def test_a_machine_has_a_place_for_each_so_many_cpus(
    resources: dict[str, float], threads: int, gpu: bool, places: int
) -> None:
    assert _places(resources, threads, gpu) == places

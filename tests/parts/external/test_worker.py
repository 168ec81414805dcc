"""A worker that misbehaves costs the sequence that it misbehaved in, and says what it did."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from spsbench.base.protocol import Answer, Ask, Load, PeerError, PeerGone, Wave, checked
from spsbench.parts.external.worker import MOST_FAILURES, MOST_LOG_BYTES, Lines, NoLine, Worker, WorkerCommand

WRONG = Path(__file__).resolve().parents[2] / "support/wrong_worker.py"
ASK = Ask([5, 6, 7], 4, stop_ids=[50])
COUNTED = [8, 9, 10, 11]


@contextmanager
def worker(kind: str, folder: Path, *, answer_s: float = 20.0, paused: bool = False) -> Iterator[Worker]:
    command = WorkerCommand(
        [sys.executable, str(WRONG), kind, str(folder / "seen")], folder / "log", answer_s=answer_s
    )
    with Worker(command, Load("target"), paused=paused) as started:
        yield started


def test_a_right_worker_answers(tmp_path: Path) -> None:
    with worker("right", tmp_path) as peer:
        assert peer.describe().engine == "counting"
        assert checked(peer.generate(ASK), ASK, 100).output_ids == COUNTED
        pid = peer.pid
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_what_a_library_prints_goes_to_the_log(tmp_path: Path) -> None:
    with worker("chatty", tmp_path) as peer:
        assert peer.generate(ASK).output_ids == COUNTED
    assert (tmp_path / "log").read_text() == "done\n"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("rubbish", "'loading the model...'"),
        ("dies", "it ended"),
        ("hangs", "no answer after 2 s"),
        ("other-request", "it answered request 9 where 2 was asked"),
        ("floods", "a line of more than 8 MB"),
        ("half-a-line", "it ended"),
        ("deep", "nested too deeply"),
        ("nan", "no JSON"),
        ("huge", "decode_ms is '10+.* and not a number"),
        ("ahead", "it wrote more than one line"),
        ("deaf", "no answer after 2 s"),
        ("loud", "it wrote more than 64 MB on stderr"),
    ],
)
def test_one_sequence_is_lost_and_the_next_is_answered(kind: str, said: str, tmp_path: Path) -> None:
    """The process is ended, started anew, and asked on; nothing of the lost request comes late."""
    with worker(kind, tmp_path, answer_s=2.0) as peer:
        peer.describe()
        first = peer.pid
        with pytest.raises(PeerError, match=said) as caught:
            peer.generate(replace(ASK, prompt_ids=[7] * 100_000) if kind == "deaf" else ASK)
        assert not isinstance(caught.value, PeerGone)
        assert not Path(f"/proc/{first}").exists()
        assert (tmp_path / "log").stat().st_size <= MOST_LOG_BYTES
        assert peer.generate(ASK).output_ids == COUNTED


def test_an_engine_that_fails_thrice_is_given_up(tmp_path: Path) -> None:
    with worker("fails", tmp_path) as peer:
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(PeerError, match="out of memory") as caught:
                peer.generate(ASK)
            assert not isinstance(caught.value, PeerGone)
        with pytest.raises(PeerGone, match=r"3 requests in a row failed.*out of memory"):
            peer.generate(ASK)


@pytest.mark.parametrize("kind", ["fails", "fails-each"])
def test_an_engine_that_answers_nothing_of_three_waves_is_given_up(kind: str, tmp_path: Path) -> None:
    wave = Wave([ASK, ASK], [0, 0], [None, None], 2)
    with worker(kind, tmp_path) as peer:
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(PeerError, match="out of memory") as caught:
                peer.together(wave)
            assert not isinstance(caught.value, PeerGone)
        with pytest.raises(PeerGone, match=r"3 requests in a row failed.*out of memory"):
            peer.together(wave)


def test_a_wave_with_one_answer_has_not_failed(tmp_path: Path) -> None:
    with worker("fails-one", tmp_path) as peer:
        for _ in range(MOST_FAILURES + 1):
            found = peer.together(Wave([ASK, ASK], [0, 0], [None, None], 2))
            assert [answer and answer.output_ids for answer in found.answers] == [None, COUNTED]


def test_an_engine_that_comes_back_as_another_is_given_up(tmp_path: Path) -> None:
    with worker("changes", tmp_path) as peer:
        with pytest.raises(PeerError):
            peer.generate(ASK)
        with pytest.raises(PeerGone, match="describes itself differently"):
            peer.generate(ASK)


def test_an_engine_that_does_not_start_is_gone(tmp_path: Path) -> None:
    with worker("never-starts", tmp_path) as peer, pytest.raises(PeerGone, match="does not load the models"):
        peer.describe()
    missing = Worker(WorkerCommand(["/no/such/engine"], tmp_path / "log"), Load("target"))
    with pytest.raises(PeerGone, match="it does not start: No such file"):
        missing.describe()


def test_an_answer_of_the_wrong_form_is_named(tmp_path: Path) -> None:
    with worker("no-object", tmp_path) as peer, pytest.raises(PeerError, match="a list of whole numbers"):
        peer.generate(ASK)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("outside-the-vocabulary", "token 100000 of a vocabulary of 100"),
        ("behind-the-stop", "went on after the stop token 50 at 0"),
        ("too-long", "returned 5 tokens where 4 were asked for"),
        ("ends-early", "stopped without a stop token"),
        ("counts", "its decoded is 1000000000000 where 4 tokens"),
    ],
)
def test_answers_that_do_not_fit_are_refused(kind: str, said: str, tmp_path: Path) -> None:
    with worker(kind, tmp_path) as peer, pytest.raises(PeerError, match=said):
        checked(peer.generate(ASK), ASK, 100)


def test_a_stop_token_that_was_kept_back_is_put_back() -> None:
    """A text without its last draw would be a biased one."""
    hidden = Answer([8, 9], "stop", hidden_stop=True)
    assert checked(hidden, ASK, 100).output_ids == [8, 9, 50]
    several = Ask([5], 4, stop_ids=[50, 51])
    with pytest.raises(PeerError, match="kept its stop token back, and there are 2"):
        checked(hidden, several, 100)


def test_what_was_written_before_it_was_asked_is_no_answer() -> None:
    (asked, ask), (answers, answer) = os.pipe(), os.pipe()
    os.write(answer, b'{"id": 1, "result": null}\n')
    with pytest.raises(NoLine, match="before it was asked"):
        Lines(ask, answers).answer("?", 1.0)
    for descriptor in (asked, ask, answers, answer):
        os.close(descriptor)


def test_a_paused_worker_is_stopped_between_its_requests(tmp_path: Path) -> None:
    with worker("right", tmp_path, paused=True) as peer:
        peer.generate(ASK)
        assert _state(peer.pid) == "T"
        assert peer.generate(ASK).output_ids == COUNTED
        assert _state(peer.pid) == "T"


def _state(pid: int | None) -> str:
    """Of a process: T where it is stopped. A signal takes a moment to arrive."""
    found = ""
    for _ in range(200):
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if found == "T":
            break
        time.sleep(0.01)
    return found


def test_nothing_is_left_behind_a_hanging_worker(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # a browser of other tests may be among them
    with worker("hangs", tmp_path, answer_s=0.5) as peer:
        with pytest.raises(PeerError):
            peer.generate(ASK)
        assert peer.pid is None
    assert set(psutil.Process().children()) <= before

"""Processes of workers: stopped while others answer, and gone with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spsbench.base.protocol import Ask, Load, PeerError, PeerGone
from spsbench.parts.external.worker import MOST_FAILURES, Worker, WorkerCommand

FAKE = Path(__file__).parents[2] / "support/reading_engine.py"
ASK = Ask(prompt_ids=[1, 2], max_new_tokens=3)

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states are read from /proc")


def worker(folder: Path, *ways: str, k: int = 0, answer_s: float = 60.0) -> Worker:
    argv = [sys.executable, str(FAKE), str(folder), *ways]
    command = WorkerCommand(
        argv, folder / "log", {"PYTHONPATH": os.pathsep.join(sys.path)}, answer_s=answer_s
    )
    load = Load(target="target", draft="draft" if k else None, k=k)
    return Worker(command, load, paused=True)


def state(pid: int | None) -> str:
    """``T`` of a stopped process, ``-`` of none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"


def becomes(pid: int | None, *states: str) -> bool:
    """Whether a process comes to one of some states; a signal is delivered when the kernel gets to it."""
    for _ in range(1000):
        if state(pid) in states:
            return True
        time.sleep(0.01)
    return False


def test_a_worker_is_stopped_while_another_answers(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with worker(tmp_path) as idle, worker(tmp_path, f"watches={seen}") as measured:
        idle.describe()
        measured.describe()
        assert becomes(idle.pid, "T")
        assert becomes(measured.pid, "T")
        seen.write_text(str(idle.pid))
        assert measured.generate(ASK).output_ids == [5, 5, 5]
        assert seen.read_text() == "T"  # read by the one that was answering
        assert becomes(measured.pid, "T")
        assert idle.generate(ASK).output_ids == [5, 5, 5]
        assert becomes(idle.pid, "T")


def test_what_it_does_wrong_costs_one_request_and_three_in_a_row_cost_the_engine(tmp_path: Path) -> None:
    for way, told in (
        ("dies=2", "it ended"),
        ("raves=2", "no JSON|more than one line"),
        ("hangs=2", "no answer after"),
    ):
        with worker(tmp_path, way, k=2, answer_s=0.5) as tested:
            tested.generate(ASK)
            first = tested.pid
            with pytest.raises(PeerError, match=told):
                tested.generate(ASK)
            assert state(first) == "-"
            assert tested.generate(ASK).output_ids == [5, 5, 5]  # of a new process
    with worker(tmp_path, "dies=1", k=2) as hopeless:
        for _ in range(MOST_FAILURES - 1):
            with pytest.raises(PeerError):
                hopeless.generate(ASK)
        with pytest.raises(PeerGone, match="3 requests in a row failed"):
            hopeless.generate(ASK)


def test_an_engine_that_does_not_load_says_why(tmp_path: Path) -> None:
    with worker(tmp_path, "no-load=1") as refusing, pytest.raises(PeerGone, match="its memory is full"):
        refusing.describe()
    absent = Worker(WorkerCommand(["/nowhere/engine"], tmp_path / "log"), Load("target"))
    with pytest.raises(PeerGone, match="No such file"):
        absent.describe()
    silent = Worker(WorkerCommand([sys.executable, "-c", ""], tmp_path / "log"), Load("target"))
    with pytest.raises(PeerGone, match="does not load the models: it ended"):
        silent.describe()


def test_an_interrupted_request_ends_its_process(tmp_path: Path) -> None:
    with worker(tmp_path, "interrupts=1", k=2) as tested:
        tested.describe()
        pid = tested.pid
        with pytest.raises(KeyboardInterrupt):
            tested.generate(ASK)
        assert state(pid) == "-"


def test_a_stopped_worker_goes_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import sys, time; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_worker_processes import worker\n"
        "tested = worker(Path(sys.argv[1]), 'pids=' + sys.argv[1] + '/pids')\n"
        "tested.describe(); print('ready', flush=True); time.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert parent.stdout.readline() == b"ready\n"
    pid = int(pids.read_text().split()[0])
    assert becomes(pid, "T")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert becomes(pid, "-", "Z")

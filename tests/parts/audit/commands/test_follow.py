"""``spsbench audit --follow`` on a log that a thread writes: right texts are quiet, a defect is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli
from support.foreign_texts import prompts, written
from transformers import AutoTokenizer

from spsbench.base.paths import mini_dir
from spsbench.base.protocol import Ask, Load, Sampling
from spsbench.parts.verify import served

Row = dict[str, Any]
CLEAN, HOUR_S = 48, 3600.0
LOG = "requests.jsonl"
KEPT = Path(f"{LOG}.audit.json")


def logged(rows: Sequence[Row], first: int = 0) -> list[str]:
    """Lines of a log, one request an hour."""
    times = [{"id": f"r{n}", "time": 1.7e9 + HOUR_S * n} for n in range(first, first + len(rows))]
    return [json.dumps(row | told) + "\n" for row, told in zip(rows, times, strict=True)]


@contextmanager
def growing(path: Path, lines: Sequence[str]) -> Iterator[None]:
    """A thread appends the lines, each in two parts."""

    def write() -> None:
        for line in lines:
            for part in (line[:9], line[9:]):
                with path.open("a") as file:
                    file.write(part)
                time.sleep(0.002)

    path.touch()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def state() -> Row:
    found: Row = json.loads(KEPT.read_text())
    return found


def test_a_defect_that_begins_later_raises_the_alarm_and_right_texts_do_not(cli: Cli) -> None:
    lines = [*logged(written()), "{garbage\n", '{"id": 5}\n', *logged(written(leak=0.5, seed=3), CLEAN)]
    with growing(Path(LOG), lines):
        found = cli("audit", "--follow", LOG, "--json")
    assert found.code == 4, found.err
    assert "not distributed as" in found.err
    assert "at most once a year on average" in " ".join(found.err.split())
    facts = json.loads(found.out)
    assert (facts["alarms"], facts["garbage"]) == (1, 2)
    alarm = facts["last_alarm"]
    assert CLEAN - 12 <= alarm["since_text"] <= alarm["text"] <= CLEAN + 30
    assert alarm["text"] > CLEAN
    assert alarm["line"] == alarm["text"] + 2
    assert facts["lines"] == alarm["line"]
    # The alarm is in the state, the detector begins anew, and what is left is read by the next following.
    assert state()["last_alarm"] == alarm
    assert state()["detector"]["value"] == {}


@pytest.mark.thorough
def test_interrupted_and_continued_it_says_the_same(cli: Cli, tmp_path: Path) -> None:
    lines = logged(written()[:12] + written(leak=1.0, seed=3))
    Path(LOG).write_text("".join(lines))
    assert cli("audit", "--follow", LOG, "--out", "whole", "--quiet").code == 4
    codes = []
    while 4 not in codes:
        codes.append(cli("audit", "--follow", LOG, "--budget", "0.05s", "--quiet").code)
        assert len(codes) < 100
    assert set(codes[:-1]) <= {0}
    assert len(codes) > 1, "never interrupted"
    assert state() == json.loads((tmp_path / "whole" / KEPT).read_text())


@pytest.mark.thorough
def test_killed_and_continued_it_says_the_same(cli: Cli, tmp_path: Path) -> None:
    lines = logged(written()[:12] + written(leak=1.0, seed=3))
    Path(LOG).write_text("".join(lines))
    assert cli("audit", "--follow", LOG, "--out", "whole", "--quiet").code == 4
    script = Path(__file__).parents[3] / "support/killed_following.py"
    paths = {"PYTHONPATH": f"{script.parents[2]}:{script.parents[1]}"}
    done = subprocess.run(
        [sys.executable, script, "3", LOG],
        env=os.environ | paths | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert ended["code"] == 4
    assert ended["kills"]
    assert state() == json.loads((tmp_path / "whole" / KEPT).read_text())


class Hook(BaseHTTPRequestHandler):
    """Takes the first finding, fails at the second, and then has the following interrupted."""

    seen: list[Row]

    def do_POST(self) -> None:
        self.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200 if len(self.seen) == 1 else 500)
        self.end_headers()
        if len(self.seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_a_webhook_is_told_and_its_failures_end_nothing(cli: Cli) -> None:
    Hook.seen = []
    right = written(temperature=0)[3] | {"sampling": {"temperature": 0}}
    rows = [right, *alarming()]
    Path(LOG).write_text("".join(logged(rows)))
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/alarm"
        found = cli("audit", "--follow", LOG, "--webhook", url)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert found.code == 130, found.err
    assert [(each["line"], each["id"], each["stake"]) for each in Hook.seen] == [
        (n, f"r{n - 1}", "impossible") for n in (2, 3, 4)
    ]
    assert found.err.count("The webhook failed (it answered 500)") >= 1
    assert "token 5 of a completion (id 7) has probability 0" in " ".join(found.err.split())
    assert "re-scored" in found.out  # Ctrl-C says what is known
    assert "Continue with" in found.err


def alarming() -> list[Row]:
    """Greedy texts, each an alarm of its own: a token that is not the best one."""
    rows = [row | {"sampling": {"temperature": 0}} for row in written(temperature=0)[:3]]
    for row in rows:
        row["completion_ids"] = [*row["completion_ids"][:5], 7, *row["completion_ids"][6:]]
    return rows


class Dripping(BaseHTTPRequestHandler):
    """Answers a byte of a header every 20 ms, without end."""

    def do_POST(self) -> None:
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                self.wfile.write(b"x")
                time.sleep(0.02)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Redirecting(Dripping):
    """Sends every finding somewhere else."""

    asked: list[str]

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize(("handler", "said"), [(Dripping, "no answer in"), (Redirecting, "it answered 307")])
def test_no_webhook_keeps_a_following_beyond_its_time(
    handler: type[BaseHTTPRequestHandler], said: str, cli: Cli
) -> None:
    Redirecting.asked = []
    Path(LOG).write_text("".join(logged(alarming())))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/alarm"
        found = cli("audit", "--follow", LOG, "--webhook", url, "--budget", "2s")
    finally:
        server.shutdown()
        server.server_close()
    assert found.code == 4, found.err
    assert f"The webhook failed ({said}" in found.err
    assert set(Redirecting.asked) <= {"/alarm"}


def test_a_pipe_that_takes_the_log_s_name_is_not_waited_for(cli: Cli) -> None:
    Path(LOG).write_text("".join(logged(written()[:2])))

    def swap() -> None:
        while not KEPT.exists():
            time.sleep(0.01)
        Path(LOG).rename(f"{LOG}.1")
        os.mkfifo(LOG)

    thread = threading.Thread(target=swap)
    thread.start()
    found = cli("audit", "--follow", LOG, "--budget", "2s", "--json")
    thread.join()
    assert found.code == 0, found.err
    assert json.loads(found.out)["texts"] == 2


def test_temperatures_that_engines_do_not_sample_at_are_not_judged(cli: Cli) -> None:
    rows = [row | {"sampling": {"temperature": 1e-4}} for row in written(temperature=0.01)[:6]]
    Path(LOG).write_text("".join(logged(rows)))
    found = cli("audit", "--follow", LOG, "--budget", "2s")
    assert found.code == 0, found.err
    assert state()["garbage"] == 6
    assert "a temperature of 0.0001 cannot be judged" in " ".join(found.out.split())


def test_one_in_n_texts_without_ids_and_another_state(cli: Cli) -> None:
    text = AutoTokenizer.from_pretrained(mini_dir() / "target").decode
    rows = [
        row | {"id": n, "completion": text(row.pop("completion_ids"))} for n, row in enumerate(written()[:20])
    ]
    Path(LOG).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = cli("audit", "--follow", LOG, "--every", "4", "--budget", "5s")
    assert found.code == 0, found.err
    facts = state()
    assert 0 < facts["texts"] == facts["retokenised"] == facts["lines"] - facts["skipped"]
    assert facts["skipped"]
    assert "the rate of false alarms does not hold for them" in " ".join(found.out.split())
    other = cli("audit", "--follow", LOG, "--every", "2", "--budget", "2s")
    assert other.code == 2
    assert "is of another log or other models" in other.err


def answered(asked: Sequence[list[int]], fault: str | None, first: int = 0) -> list[Row]:
    """What the served engine writes behind prompts."""
    folder = mini_dir()
    engine = served.Served(Load(f"{folder}/target", f"{folder}/draft", k=4, threads=1), fault)
    asks = [Ask(ids, 24, [], [], Sampling(temperature=1.0), seed=n) for n, ids in enumerate(asked, first)]
    return [{"prompt_ids": ask.prompt_ids, "completion_ids": engine.generate(ask).output_ids} for ask in asks]


@cache
def honest() -> list[Row]:
    return answered(prompts(), None)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["inverted-ratio", "bonus-from-draft"])
def test_a_fault_of_the_served_engine_is_found_from_the_minute_it_is_switched_on(
    cli: Cli, fault: str
) -> None:
    rows = [*honest(), *answered(prompts(seed=1), fault, CLEAN)]
    with growing(Path(LOG), logged(rows)):
        found = cli("audit", "--follow", LOG, "--budget", "5min", "--json")
    assert found.code == 4, found.err
    alarm = json.loads(found.out)["last_alarm"]
    assert alarm["text"] > CLEAN
    assert alarm["since_text"] > CLEAN - 12

"""SIGTERM and SIGHUP end a command as Ctrl-C does: nothing finished is lost, the last line continues it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, Cli, Result, is_present, journal
from support.interrupting import Case

from spsbench.__main__ import run
from spsbench.cli.interruption import SIGNALS, listening

pytestmark = pytest.mark.thorough_but("1.2-False")

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
}
SHORT = (*map(str, BRIEF), *SMALL)
RUN = ("run", *SHORT, "--no-proof")
EXECUTION = "spsbench.runner.execution"
RUNNING = f"{EXECUTION}:generated_samples"
CASES = {
    "load": Case([*RUN], "spsbench.runner.models:load_pair"),
    "warm-up": Case([*RUN, "--out", "warm"], f"{EXECUTION}:warm_up", "SIGHUP"),
    "mid-run": Case([*RUN, "--out", "mid run"], RUNNING),
    "continued": Case([]),
    "Ctrl-C": Case([*RUN, "--out", "ctrl-c"], RUNNING, "SIGINT"),
    "conclusion": Case([*RUN, "--out", "whole"], f"{EXECUTION}:finalize"),
    "concluded": Case([]),
    "report": Case(["report", "whole"], "spsbench.cli.report:_readable_runs", "SIGHUP"),
    "nohup": Case([*RUN, "--out", "nohup"], RUNNING, "SIGHUP", ignored=True),
    "sweep-k": Case(["sweep-k", *SHORT, "--k", "0..1", "--out", "sweep"], RUNNING),
    "paper": Case(["paper", "--limit", "1", "--samples", "1", "--out", "paper"], RUNNING),
    "advise": Case(["advise", "xsum", "--limit", "8", "--max-new-tokens", "4", "--no-check"], RUNNING),
    "bench": Case(["bench", "--seconds", "0.1"], "spsbench.parts.whatif.bench.study:study"),
    "verify": Case(["verify", "--effort", "reduced"], "spsbench.runner:load"),
    "distill": Case(
        [
            "distill",
            "--target",
            "embedded:mini/draft",
            *("--kind", "model:layers=1:vocabulary=0"),
            "--out",
            "d",
        ],
        "spsbench.parts.distill.making:_target_model",
    ),
}
CASES = {name: case for name, case in CASES.items() if is_present(case.command)}
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all cases were carried out."""
    place = tmp_path_factory.mktemp("interrupted")
    (place / "cases.json").write_text(json.dumps([dataclasses.asdict(case) for case in CASES.values()]))
    command = [sys.executable, str(TESTS / "support/interrupting.py"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def results(folder: Path) -> Mapping[str, Result]:
    """What became of the cases, by name."""
    found = json.loads((folder / "results.json").read_text())
    return {name: Result(**result) for name, result in zip(CASES, found, strict=True)}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.at and not case.ignored])
def test_the_exit_code_is_the_signals_and_nothing_but_sentences_is_said(
    results: Mapping[str, Result], name: str
) -> None:
    result = results[name]
    assert result.code == CODES[CASES[name].signal], result.err
    assert "Traceback" not in result.err
    assert "error:" not in result.err
    by = "" if CASES[name].signal == "SIGINT" else f" by {CASES[name].signal}"
    assert f"\nInterrupted{by}" in result.err


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("load", shlex.join(["spsbench", *RUN])),
        ("warm-up", shlex.join(["spsbench", *RUN, "--out", "warm"])),
        ("mid-run", "spsbench run --resume 'mid run'"),
        ("Ctrl-C", "spsbench run --resume ctrl-c"),
        ("conclusion", "spsbench run --resume whole"),
        ("report", "spsbench report whole"),
        ("sweep-k", "spsbench run --resume sweep"),
        ("paper", "spsbench paper --resume paper"),
        ("bench", "spsbench bench --seconds 0.1"),
        ("verify", "spsbench verify --effort reduced"),
        (
            "distill",
            "spsbench distill --target embedded:mini/draft --kind model:layers=1:vocabulary=0 --out d",
        ),
    ],
)
def test_the_last_line_is_the_command_that_continues(
    results: Mapping[str, Result], name: str, last: str
) -> None:
    if name not in CASES:
        pytest.skip("the part of this command was deleted")
    assert results[name].err.endswith(f":\n  {last}\n")


def test_advice_goes_on_in_the_directory_that_was_made_for_it(
    folder: Path, results: Mapping[str, Result]
) -> None:
    *typed, flag, directory = shlex.split(results["advise"].err.splitlines()[-1])
    assert typed == ["spsbench", *CASES["advise"].command]
    assert (flag, len(journal(folder / directory))) == ("--out", 1)


def test_what_was_finished_is_kept_and_the_last_line_completes_it(
    folder: Path, results: Mapping[str, Result]
) -> None:
    assert results["continued"].code == 0, results["continued"].err
    assert "1 of them already measured" in results["continued"].err
    assert len(journal(folder / "mid run")) == 2
    assert results["concluded"].code == 0, results["concluded"].err
    assert json.loads((folder / "whole/summary.json").read_text())["complete"]


def test_an_interruption_before_the_first_sequence_leaves_nothing(folder: Path) -> None:
    made = [path.name for path in (folder / "results").iterdir()]
    assert all("advise" in name for name in made), made
    assert journal(folder / "warm") == []


def test_under_nohup_a_closed_terminal_does_not_end_a_run(
    folder: Path, results: Mapping[str, Result]
) -> None:
    assert results["nohup"].code == 0, results["nohup"].err
    assert len(journal(folder / "nohup")) == 2


def wait_for(journal: Path, process: subprocess.Popen[str]) -> None:
    """Until a sequence is there."""
    deadline_s = time.monotonic() + 240
    while not (journal.is_file() and b"\n" in journal.read_bytes()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_several_processes_end_with_the_one_that_was_signalled(cli: Cli, tmp_path: Path) -> None:
    """As by ``kill PID``: the child is sent nothing by anybody else."""
    flags = (
        "--limit",
        "40",
        "--threads",
        "1",
        "--no-score",
        "--no-proof",
        "--processes",
        "2",
        "--out",
        "two runs",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "spsbench", "run", *flags], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    kept = tmp_path / "two runs/process-0"
    wait_for(kept / "samples.jsonl", process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "Traceback" not in said
    assert len(journal(kept)) >= 1
    ended = len(journal(kept))
    *_, last = said.splitlines()
    words = shlex.split(last)
    assert words[:4] == ["spsbench", "run", "--processes", "2"]
    assert words[-1] == "two runs"
    time.sleep(0.3)
    assert len(journal(kept)) == ended, "the child has ended too"


SLOW_TO_END = """
import os, signal, sys, time
from spsbench.cli.interruption import listening
with listening([]):
    try:
        print("ready", flush=True)
        signal.pause()
    finally:
        print("ending", flush=True)
        time.sleep(float(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGTERM)
        print("still there", flush=True)
        time.sleep(0)
"""


@pytest.mark.parametrize(("later_s", "survives"), [(0.0, True), (1.2, False)])
def test_a_second_signal_ends_at_once_unless_it_is_the_same_request(later_s: float, survives: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_END, str(later_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    rest = process.communicate(timeout=60)[0].split("\n")
    assert ("still there" in rest) == survives
    assert (process.returncode == -signal.SIGTERM) != survives


def test_handlers_are_restored_and_forked_children_have_those_of_before() -> None:
    def mine(signum: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with listening([]):
            assert signal.getsignal(signal.SIGTERM) is not mine
            with listening([]):
                pass
            assert signal.getsignal(signal.SIGTERM) is not mine
            child = os.fork()
            if not child:
                os._exit(0 if signal.getsignal(signal.SIGTERM) is mine else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ray_does_not_keep_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    from spsbench.runner import worker as ray_pool

    def init(**settings: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    before = signal.getsignal(signal.SIGTERM)
    ray_pool._join_or_start_cluster("ray://elsewhere")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_follower_of_a_split_target_dies_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    from spsbench.runner import ranks as follower

    heard = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, *SIGNALS)}
    monkeypatch.setattr(follower, "_carry_out_orders", lambda ranks: None)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with listening([]):
            assert follower.follow(None) == 0  # type: ignore[arg-type]
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for signum, handler in heard.items():
            signal.signal(signum, handler)


def test_ctrl_c_while_commands_are_imported_is_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "spsbench.cli.main", Slow("spsbench.cli.main"))
    assert run() == 130

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spsbench.base import environment
from spsbench.base.records import Arm, Generation, Loop, Method, Sample, SamplingParams
from spsbench.cli.console import Transfers, load_in_runs, say_if_busy
from spsbench.cli.messages import LOAD_IN_ROUNDS
from spsbench.cli.progress import BarProgress, LogProgress


def arm(method: Method, sampling: str = "nucleus") -> Arm:
    return Arm(method, 4 if method == "sps" else 0, "eager", sampling, SamplingParams())


ARMS = (arm("ars"), arm("sps"))


def sample(method: Method, sampling: str = "nucleus", *, error: str | None = None, index: int = 0) -> Sample:
    k = 4 if method == "sps" else 0
    loop = Loop(k, 2 if k else 0, 3 if k else 1, 3 if k else 0, 0.0, 0, None, None, None, None, 0.03)
    tokens = list(range(6 if k else 2))
    generation = Generation(tokens, "", [loop, loop], 0.1, 0.06, "length")
    return Sample("a", index, arm(method, sampling).name, 3, generation, error=error)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=False, highlight=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_gets_stages_and_running_numbers(console: Console) -> None:
    log = LogProgress(console)
    log.loading("a and b")
    log.started(2, 0, ARMS)
    log.finished(sample("sps"))
    log.finished(sample("ars"))
    log.scoring(2)
    assert text(console).splitlines() == [
        "Loading a and b",
        "Measuring 2 sequences",
        "1/2  SpS (K=4): 10.0 ms/token  mean_acceptance_length 3.00",
        "2/2  ArS: 30.0 ms/token; SpS (K=4): 10.0 ms/token  mean_acceptance_length 3.00",
        "Scoring 2 outputs",
    ]


@pytest.mark.parametrize(("total", "sequences"), [(1, "1 sequence"), (2, "2 sequences")])
def test_the_sequences_of_the_proof_are_counted(console: Console, total: int, sequences: str) -> None:
    LogProgress(console).proving(total)
    assert text(console).startswith(f"Drawing up to {sequences} at temperature 1")


def test_a_log_of_a_long_run_stays_short(console: Console) -> None:
    log = LogProgress(console)
    log.started(1000, 400, ARMS)
    for index in range(600):
        log.finished(sample("ars", index=index))
    lines = text(console).splitlines()
    assert lines[0] == "Measuring 1000 sequences, 400 of them already measured"
    assert [line.split()[0] for line in lines[1:]] == [f"{n}/1000" for n in range(500, 1001, 100)]


def test_failures_are_counted_and_not_timed(console: Console) -> None:
    log = LogProgress(console)
    log.started(2, 0, ARMS)
    log.finished(sample("ars", error="it broke"))
    log.finished(sample("ars", index=1))
    assert "1/2  ArS: - ms/token  1 failed" in text(console)
    assert "2/2  ArS: 30.0 ms/token  1 failed" in text(console)


def test_samplings_are_told_apart(console: Console) -> None:
    log = LogProgress(console)
    both = (arm("ars", "greedy"), arm("ars"))
    log.started(1, 0, both)
    log.finished(sample("ars"))
    log.finished(sample("ars", "greedy"))
    bar = BarProgress(console)
    bar.started(2, 0, both)
    bar.finished(sample("ars"))
    bar.finished(sample("ars", "greedy"))
    names = [name for name, _ in bar._tallies.rows()]
    bar.stop()
    assert names == ["ArS greedy", "ArS nucleus"]


def test_the_bar_shows_numbers_on_a_terminal_and_goes_away() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False)
    bar = BarProgress(console)
    bar.started(2, 1, ARMS)
    bar.finished(sample("sps"))
    shown = text(console)
    assert "Warming up" in shown
    assert "2/2" in shown
    assert "mean_acceptance_length 3.00" in shown
    bar.scoring(1)
    bar.stop()
    assert "Scoring 1 outputs" in text(console)


def test_a_run_that_may_end_early_says_how_many_sequences_are_expected(console: Console) -> None:
    log = LogProgress(console)
    log.started(80, 0, ARMS)
    log.expecting(None, "How many prompts are needed is known after 8 prompts.")
    log.expecting(20, "")
    for index in range(2):
        log.finished(sample("ars", index=index))
    assert text(console).splitlines()[1:] == [
        "How many prompts are needed is known after 8 prompts.",
        "2/20  ArS: 30.0 ms/token",
    ]
    bar = BarProgress(console)
    bar.started(80, 0, ARMS)
    bar.expecting(20, "About 10 of 40 prompts expected for ±5%.")
    bar.stop()
    assert "About 10 of 40 prompts expected for ±5%." in text(console)
    assert "/20" in text(console)


def test_a_small_transfer_has_lines_that_say_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Transfers(quiet=False).transfer("weights of a tiny model", 100_000, 0) as came:
        came(50_000)
        came(50_000)
    lines = ["Fetching weights of a tiny model", "50 kB of 100 kB", "100 kB of 100 kB"]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize(
    "sentence", [load_in_runs(remeasured=True), load_in_runs(remeasured=False), LOAD_IN_ROUNDS]
)
def test_the_line_about_other_load_fits_the_terminal(
    columns: int, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(environment, "busy", lambda: "Other processes use 2.0 of 2 CPUs now.")
    say_if_busy(sentence)
    said = capsys.readouterr().err
    assert max(map(len, said.splitlines())) <= columns
    assert " ".join(said.split()) == f"Other processes use 2.0 of 2 CPUs now. {sentence}"

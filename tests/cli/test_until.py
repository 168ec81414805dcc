"""``--until``, a precision or a time: where a run ends, what it leaves, how it goes on.

Engines are timed by a fake clock, so that the number of prompts follows from the tokens alone.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import BRIEF, Cli, Result, call

import spsbench.runner  # noqa: F401  (fills sys.modules)
from spsbench.base.records import Sample
from spsbench.stats.anytime import FEWEST
from spsbench.testing import FakeClock

pytestmark = pytest.mark.thorough_but("stops_by_itself")

SHORT = (
    *("--max-new-tokens", "8", "--threads", "1", "--set", "trace=0", "--no-proof", "--no-score"),
    *("--set", "warmup=false"),
)
POOL = ("--limit", "40", *BRIEF)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]


def tokens(directory: Path) -> list[tuple[Any, ...]]:
    names = ("example_id", "sample_index", "arm", "order", "token_ids")
    return [tuple(map(str, (line[name] for name in names))) for line in lines(directory)]


def stopping(directory: Path) -> Any:
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["stopping"] == json.loads((directory / "run.json").read_text())["stopping"]
    return summary["stopping"]


def deterministic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("spsbench.runner.engines.SystemClock", FakeClock)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    deterministic(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every prompt; not to be changed."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        deterministic(patch)
        assert call("run", *POOL, *SHORT, "--out", directory, "--quiet").code == 0
    return directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run that stopped by itself; not to be changed."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        deterministic(patch)
        result = call("run", *POOL, *SHORT, "--until", "ci=50%", "--out", directory)
    return directory, result


def test_it_stops_by_itself_and_says_so(stopped: tuple[Path, Result]) -> None:
    directory, result = stopped
    assert result.code == 0, result.err
    assert "How many prompts are needed is known after 8 prompts." in result.err
    assert "About 20 of 40 prompts expected for ±50%." in result.err
    for text in (" ".join(result.out.split()), (directory / "report.md").read_text()):
        assert "Stopped after 20 of 40 prompts: the speedup is known to ±" in text
        assert "95% confidence sequence" in text
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["complete"]
    assert [(row["prompts"], row["missing"]) for row in summary["rows"]] == [(FEWEST, 0)] * 2
    found = stopping(directory)
    assert (found["reason"], found["until"], found["precision"]) == ("precision", "ci=50%", 0.5)
    assert (found["prompts"], found["pool"]) == (FEWEST, 40)


def test_the_table_has_the_anytime_valid_interval(stopped: tuple[Path, Result], whole: Path) -> None:
    summary = json.loads((stopped[0] / "summary.json").read_text())
    [arm] = summary["stopping"]["arms"]
    assert arm["half_width"] <= 0.5
    shown = summary["rows"][1]["speedup"]
    assert shown == pytest.approx({name: arm[name] for name in ("ratio", "low", "high")})
    # Wider than the ordinary one of twice as many prompts by more than their number explains.
    ordinary = json.loads((whole / "summary.json").read_text())["rows"][1]["speedup"]
    assert shown["high"] - shown["low"] > 1.5 * (ordinary["high"] - ordinary["low"])


def test_its_tokens_are_the_first_ones_of_the_whole_run(stopped: tuple[Path, Result], whole: Path) -> None:
    assert tokens(stopped[0]) == tokens(whole)[: 2 * FEWEST]


def test_resumed_with_the_same_settings_it_does_nothing_more(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: tuple[Path, Result]
) -> None:
    directory = shutil.copytree(stopped[0], tmp_path / "run")
    before, told = tokens(directory), stopping(directory)
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules["spsbench.runner.models"], "load_pair")
        again = cli("run", "--resume", directory, "--quiet")
    assert (again.code, tokens(directory), stopping(directory)) == (0, before, told)

    on = cli("run", "--resume", directory, "--until", "ci=0.5%")
    assert on.code == 0, on.err
    assert tokens(directory)[: len(before)] == before
    found = stopping(directory)
    assert (found["reason"], found["prompts"], found["until"]) == ("prompts", 40, "ci=0.5%")
    assert "All 40 of 40 prompts were run" not in " ".join(on.out.split())
    assert "All 40 prompts were run: the speedup is known to ±" in " ".join(on.out.split())

    # Once looked at, always looked at: the intervals stay those of a confidence sequence.
    assert cli("run", "--resume", directory, "--set", "until=null", "--quiet").code == 0
    assert (stopping(directory)["until"], stopping(directory)["anytime"]) == (None, True)


def test_an_interrupted_run_goes_on_to_the_same_end(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: tuple[Path, Result]
) -> None:
    executing, directory = sys.modules["spsbench.runner.execution"], tmp_path / "run"
    measure = executing.generated_samples

    def killed(*arguments: Any, **options: Any) -> Iterator[Sample]:
        for number, sample in enumerate(measure(*arguments, **options)):
            if number == 7:
                raise KeyboardInterrupt
            yield sample

    asked = ("run", *POOL, *SHORT, "--until", "ci=50%", "--out", directory, "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(executing, "generated_samples", killed)
        assert cli(*asked).code == 130
    half = json.loads((directory / "run.json").read_text())
    assert (half["stopping"]["reason"], half["expected_sequences"]) == (None, 40)
    assert cli("report", directory, "--quiet").code == 0

    assert cli("run", "--resume", directory, "--quiet").code == 0
    assert tokens(directory) == tokens(stopped[0])
    assert stopping(directory)["reason"] == "precision"


def test_a_stopped_run_is_whole_to_every_other_command(
    cli: Cli, tmp_path: Path, stopped: tuple[Path, Result], whole: Path
) -> None:
    directory = shutil.copytree(stopped[0], tmp_path / "run")
    for command in (("report", directory), ("score", directory), ("compare", whole, directory)):
        result = cli(*command)
        assert result.code == 0, result.err
        assert "missing" not in result.out
        assert "not been run" not in result.out
    assert "B stopped by the width of its intervals" in " ".join((result.out + result.err).split())
    assert len((directory / "scores.jsonl").read_text().splitlines()) == 2 * FEWEST


def test_an_earlier_run_says_what_to_expect(cli: Cli, tmp_path: Path) -> None:
    first = cli("run", "--limit", "10", *BRIEF, *SHORT, "--seed", "1")
    assert first.code == 0, first.err
    [earlier] = (tmp_path / "results").iterdir()
    second = cli("run", "--limit", "9", *BRIEF, *SHORT, "--until", "ci=20%")
    assert second.code == 0, second.err
    assert " prompts expected for ±20%; the run has 9." in second.err
    assert f"This is estimated from {Path('results') / earlier.name}." in second.err
    assert "known after 8 prompts" not in second.err
    other = cli("run", "--limit", "1", *BRIEF, *SHORT, "--until", "ci=20%", "--k", "2")
    assert "known after 8 prompts" in other.err


@pytest.fixture
def _ten_seconds_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence takes ten seconds by the budget's clock."""
    monkeypatch.setattr(sys.modules["spsbench.runner.execution"], "perf_counter", FakeClock(10.0).now)


@pytest.mark.usefixtures("_ten_seconds_each")
def test_a_budget_ends_behind_a_whole_prompt_and_counts_all_attempts(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    result = cli("run", "--limit", "9", *BRIEF, *SHORT, "--until", "50s", "--out", directory)
    assert result.code == 0, result.err
    assert "Measuring ends after 50 s." in result.err
    assert "Budget of 50 s reached after 3 of 9 prompts: the speedup is known to ±" in result.out
    found = stopping(directory)
    assert (found["reason"], found["prompts"], found["measured_s"]) == ("budget", 3, 60.0)
    assert not found["anytime"]
    assert [row["missing"] for row in json.loads((directory / "summary.json").read_text())["rows"]] == [0, 0]

    assert cli("run", "--resume", directory, "--quiet").code == 0
    assert stopping(directory)["prompts"] == 3
    assert cli("run", "--resume", directory, "--until", "2min", "--quiet").code == 0
    assert (stopping(directory)["prompts"], stopping(directory)["budget_s"]) == (6, 120.0)


@pytest.mark.usefixtures("_ten_seconds_each")
def test_a_budget_limits_a_precision(cli: Cli, tmp_path: Path) -> None:
    asked = ("--until", "ci=5%,0.05h", "--json", "--quiet")
    result = cli("run", *POOL, *SHORT, *asked, "--out", tmp_path / "run")
    summary = json.loads(result.out)
    assert (summary["stopping"]["reason"], summary["stopping"]["prompts"]) == ("budget", 9)
    # Of so few prompts there is no confidence sequence, and an ordinary interval is not put in its place.
    assert summary["rows"][1]["speedup"]["low"] is None
    assert summary["complete"]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "Budget of 180 s reached after 9 of 40 prompts, asked was ±5%." in report
    assert "Below 20 prompts there is no interval that stays valid" in report


@pytest.mark.usefixtures("_ten_seconds_each")
def test_all_samples_of_a_prompt_belong_to_it_and_are_scored(cli: Cli, tmp_path: Path) -> None:
    short = [option for option in SHORT if option != "--no-score"]
    result = cli(
        *("run", "humaneval", "--limit", "3", "--samples", "2", *short, "--until", "50s"),
        *("--json", "--quiet", "--out", tmp_path / "run"),
    )
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert (summary["stopping"]["prompts"], summary["stopping"]["pool"]) == (2, 3)
    assert [(row["sequences"], row["missing"]) for row in summary["rows"]] == [(4, 0), (4, 0)]
    assert all("pass@1" in row["metrics"] for row in summary["rows"])


def test_an_arm_that_always_fails_does_not_keep_a_run_going(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spsbench.engines.local import EagerEngine

    generate = EagerEngine.generate

    def failing(self: EagerEngine, request: Any) -> Any:
        if self._k == 2:
            raise RuntimeError("out of memory")
        return generate(self, request)

    monkeypatch.setattr(EagerEngine, "generate", failing)
    result = cli(
        *("run", "--k", "2,4", *POOL, *SHORT, "--until", "ci=50%", "--json", "--quiet"),
        *("--out", tmp_path / "run"),
    )
    assert result.code == 5
    summary = json.loads(result.out)
    assert (summary["stopping"]["reason"], summary["stopping"]["prompts"]) == ("precision", FEWEST)
    assert [(row["failed"], row["missing"]) for row in summary["rows"]] == [(0, 0), (FEWEST, 0), (0, 0)]


def test_settings_come_from_a_file_too(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("until: ci=50%,1000s\nlimit: 1\n")
    assert cli("run", "--config", settings, *SHORT, "--out", "run", "--quiet").code == 0
    kept = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert kept["until"] == "ci=50%,1000s"
    found = stopping(tmp_path / "run")
    assert (found["reason"], found["until"], found["budget_s"]) == ("prompts", "ci=50%", 1000.0)


def test_sweep_k_stops_when_every_arm_is_known(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        *("sweep-k", "--k", "0,1,3", *POOL, *SHORT, "--until", "ci=50%", "--json", "--quiet"),
        *("--out", tmp_path / "run"),
    )
    assert result.code == 0, result.err
    assert [arm["half_width"] <= 0.5 for arm in json.loads(result.out)["stopping"]["arms"]] == [True, True]

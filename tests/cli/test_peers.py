"""Engines of others as arms of a run, by the command line and a worker that reads texts out."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, Result, call

from spsbench.parts.external import registry
from spsbench.parts.external.worker import WorkerCommand

FAKE = Path(__file__).parents[1] / "support/reading_engine.py"
SMALL = (
    "--limit",
    "3",
    "--max-new-tokens",
    "12",
    "--threads",
    "1",
    "--set",
    "warmup=false",
    "--set",
    "trace=0",
)
GREEDY = (*SMALL, "--sampling", "greedy", "--no-proof", "--quiet")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose greedy texts the worker reads out."""
    run = tmp_path_factory.mktemp("texts") / "run"
    assert call("run", "xsum", *GREEDY, "--arms", "ars", "--no-score", "--out", run).code == 0
    return run


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where every worker notes its pid; workers find the packages that this process has."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path / "pids"


def engine(texts: Path, pids: Path, *ways: str) -> str:
    return "worker:" + " ".join([sys.executable, str(FAKE), str(texts), f"pids={pids}", *ways])


def run(cli: Cli, engines: str, out: Path, *flags: str) -> Result:
    return cli("run", *GREEDY, "--no-score", "--engine", engines, "--json", "--out", out, *flags)


def by_arm(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows by the arm's name without the worker's command."""
    return {row["arm"].partition(":")[0]: row for row in summary["rows"]}


def rows(result: Result) -> dict[str, dict[str, Any]]:
    return by_arm(json.loads(result.out))


def recorded(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "run.json").read_text())
    return found


def ended(pids: Path) -> bool:
    """Whether no worker is left of those that were started; there was one at least."""
    started = [int(line.split()[0]) for line in pids.read_text().splitlines()]
    return bool(started) and not any(Path(f"/proc/{pid}/stat").exists() for pid in started)


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> tuple[Path, Path, Result]:
    """A run of ours and the worker, the pids of the worker's processes, and what was printed."""
    folder = tmp_path_factory.mktemp("beside")
    settings, pids, out = folder / "settings.json", folder / "pids", folder / "run"
    settings.write_text('{"dtype": "bfloat16", "prefix_cache": false}')
    command = engine(texts, pids, f"settings={settings}", "unheeded=a,b").removeprefix("worker:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        result = call("run", *GREEDY[:-1], "--engine", f'eager,worker:"{command}"', "--out", out)
    return out, pids, result


def test_a_worker_is_measured_beside_ours(beside: tuple[Path, Path, Result]) -> None:
    out, pids, result = beside
    assert result.code == 0, result.err
    summary = json.loads((out / "summary.json").read_text())
    found = by_arm(summary)
    assert list(found) == [
        "ars-greedy",
        "ars-greedy@worker",
        "sps-k4-greedy",
        "sps-k4-greedy+own-rule@worker",
    ]
    ars, sps = found["ars-greedy@worker"], found["sps-k4-greedy+own-rule@worker"]
    assert ars["ms_per_token"] == pytest.approx(0.01)
    assert sps["ms_per_token"] == pytest.approx(0.005)
    assert (sps["baseline"], sps["own_baseline"]) == (ars["arm"], ars["arm"])
    assert sps["own_speedup"]["ratio"] == pytest.approx(2.0)
    ours = found["sps-k4-greedy"]
    assert (ours["baseline"], ours["own_baseline"]) == (ars["arm"], "ars-greedy")
    assert ours["own_speedup"] != ours["speedup"]
    assert (sps["tokens_per_loop"], sps["verification_rule"]) == (4.0, "reads out what was written")
    assert (sps["peak_memory_bytes"], sps["target_mode"]) == (None, "its own")
    told = recorded(out)["engines"][sps["arm"]]
    assert (told["engine"], told["version"], told["limits"]) == ("reader", "1", ["It reads out texts."])
    assert told["settings"] == {"dtype": "bfloat16", "threads": 1, "prefix_cache": False}
    assert len(pids.read_text().splitlines()) == 2
    assert ended(pids)


def test_its_texts_are_read_again_and_held_against_our_greedy_ones(beside: tuple[Path, Path, Result]) -> None:
    judged = json.loads((beside[0] / "summary.json").read_text())["losslessness"]["arms"]
    identical = {arm["arm"].partition(":")[0]: arm["identity"] for arm in judged}
    assert identical.pop("ars-greedy") is None
    assert [same["identical"] for same in identical.values()] == [1.0, 1.0, 1.0]
    for arm in judged:
        assert arm["rescored"]["tokens"] == 36
        assert (arm["decisions"] is None) == ("worker" in arm["arm"])


def test_the_report_shows_both_baselines_and_what_was_not_equal(beside: tuple[Path, Path, Result]) -> None:
    out, _, result = beside
    screen, report = " ".join(result.out.split()), (out / "report.md").read_text()
    assert "over its own ArS [95%] over the fastest [95%]" in screen
    assert "dtype (of weights and sums) differs: float32 with eager; bfloat16 with worker:" in screen
    section = report.partition("## Engines")[2].partition("\n## ")[0]
    assert "| reader 1 | reads out what was written |" in section
    assert "* reader: It reads out texts." in section
    assert str(FAKE.parent) not in section  # of a command no folders
    again = call("report", out)
    assert again.code == 0, again.err


def test_one_engine_has_one_baseline_and_no_section(finished: tuple[Path, Result]) -> None:
    out, shown = finished
    assert "over its own ArS" not in shown.out
    assert "## Engines" not in (out / "report.md").read_text()


def test_a_dying_engine_costs_its_sequences_alone(cli: Cli, tmp_path: Path, texts: Path, pids: Path) -> None:
    out = tmp_path / "run"
    result = run(cli, engine(texts, pids, "dies=2"), out)
    assert result.code == 5
    found = rows(result)
    sps = found["sps-k4-greedy+own-rule@worker"]
    assert (sps["sequences"], sps["failed"], sps["missing"]) == (2, 1, 0)
    assert all(row["failed"] == 0 for row in found.values() if row is not sps)
    journal = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    errors = [line["error"] for line in journal if line["error"]]
    assert len(errors) == 1
    assert errors[0].startswith("PeerError: it ended; see ")
    assert ended(pids)


@pytest.mark.thorough
def test_a_hopeless_process_is_given_up_and_the_other_arms_go_on(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path
) -> None:
    result = run(cli, engine(texts, pids, "raves=1"), tmp_path / "run", "--limit", "5")
    assert result.code == 5
    sps = rows(result)["sps-k4-greedy+own-rule@worker"]
    assert rows(result)["ars-greedy@worker"]["sequences"] == 5
    assert (sps["sequences"], sps["failed"]) == (0, 5)
    assert len([line for line in pids.read_text().splitlines() if line.endswith(" 4")]) == 3
    assert ended(pids)


@pytest.mark.thorough
def test_a_hanging_engine_costs_its_sequences(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WorkerCommand", partial(WorkerCommand, answer_s=0.3))
    out = tmp_path / "run"
    result = run(cli, engine(texts, pids, "hangs=3"), out)
    assert result.code == 5
    assert rows(result)["sps-k4-greedy+own-rule@worker"]["failed"] == 1
    assert "no answer after 0.3 s" in (out / "samples.jsonl").read_text()
    assert ended(pids)


@pytest.mark.thorough
def test_an_arm_whose_engine_does_not_start_is_left_out_and_resumed(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path
) -> None:
    out = tmp_path / "run"
    broken = tmp_path / "absent.py"
    asked = f"worker:{sys.executable} {broken} {texts} pids={pids}"
    result = run(cli, f"eager,{asked}", out)
    assert result.code == 5
    found = rows(result)
    assert (found["ars-greedy@worker"]["missing"], found["ars-greedy"]["missing"]) == (3, 0)
    assert any("its engine could not be started" in text for text in json.loads(result.out)["warnings"])
    still = cli("run", "--resume", out, "--json", "--quiet")
    assert still.code == 5
    assert rows(still)["ars-greedy"]["sequences"] == 3
    broken.write_text(FAKE.read_text())
    again = cli("run", "--resume", out, "--json", "--quiet")
    assert again.code == 0, again.err
    assert {row["sequences"] for row in rows(again).values()} == {3}
    assert json.loads(again.out)["conditions"] == []
    told = recorded(out)
    assert told["engines_left_out"] == {}
    assert len(told["target_mode"]) == len(told["engines"]) == 4


def test_an_engine_that_cannot_take_the_draft_keeps_its_ars(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path
) -> None:
    result = run(cli, engine(texts, pids, "no-draft=1"), tmp_path / "run")
    assert result.code == 5
    found = rows(result)
    assert found["ars-greedy@worker"]["sequences"] == 3
    assert found["sps-k4-greedy+own-rule@worker"]["missing"] == 3
    assert ended(pids)


def test_without_any_engine_nothing_is_measured(cli: Cli, tmp_path: Path, texts: Path, pids: Path) -> None:
    result = cli("run", *GREEDY, "--engine", engine(texts, pids, "no-load=1"))
    assert result.code == 3
    assert "its memory is full" in result.err
    assert "its log ends: 'ValueError: its memory is full'" in " ".join(result.err.split())
    assert not list((tmp_path / "results").glob("*"))
    assert ended(pids)


def test_ctrl_c_leaves_no_process(cli: Cli, tmp_path: Path, texts: Path, pids: Path) -> None:
    result = run(cli, engine(texts, pids, "interrupts=2"), tmp_path / "run")
    assert result.code == 130
    assert "Continue with" in result.err
    assert ended(pids)


@pytest.mark.thorough
def test_a_run_is_not_continued_with_another_version(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path
) -> None:
    out, version = tmp_path / "run", tmp_path / "version"
    version.write_text("1")
    asked = engine(texts, pids, f"version-of={version}")
    assert run(cli, asked, out, "--limit", "2").code == 0
    version.write_text("2")
    refused = run(cli, asked, out)
    assert refused.code == 2
    assert "reader 1 -> reader 2" in refused.err
    assert "--allow-mixed" in refused.err
    mixed = run(cli, asked, out, "--allow-mixed")
    assert mixed.code == 0, mixed.err
    assert len(json.loads(mixed.out)["conditions"]) == 2
    other = run(cli, engine(texts, pids), out)
    assert other.code == 2
    assert "holds another run" in other.err
    assert ended(pids)


@pytest.mark.thorough
def test_until_does_not_wait_for_an_engine_that_does_not_start(
    cli: Cli, tmp_path: Path, texts: Path, pids: Path
) -> None:
    result = run(cli, f"eager,{engine(texts, pids, 'no-load=1')}", tmp_path / "run", "--until", "0.001s")
    assert result.code == 5
    assert rows(result)["ars-greedy"]["sequences"] == 1

"""``run --processes``: complete runs side by side, one interval over them, and clear refusals."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commandline import ALONE, BRIEF, SMALL, Cli, call, journal

from spsbench.cli import run as module

ASKED = ("run", *BRIEF, *SMALL, *ALONE, "--remeasure", "0")
SHORT = ("run", "xsum", *BRIEF, *SMALL, "--no-score", "--no-proof", "--remeasure", "0", "--processes", "2")


class InThisProcess:
    """What ``subprocess.Popen`` gives, without loading torch again."""

    def __init__(self, command: list[str], **_: object) -> None:
        assert command[:3] == [sys.executable, "-m", "spsbench"]
        self.code = call(*command[3:]).code

    def wait(self) -> int:
        return self.code


@pytest.mark.thorough
def test_two_processes_give_one_interval_over_both(cli: Cli, tmp_path: Path) -> None:
    result = cli(*SHORT, "--limit", "2", "--out", tmp_path / "runs", "--json", "--quiet")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert [row["processes"] for row in summary["rows"]] == [2, 2]
    assert [row["sequences"] for row in summary["rows"]] == [4, 4]
    assert summary["complete"] is True
    assert json.loads((tmp_path / "runs/summary.json").read_text()) == summary
    report = (tmp_path / "runs/report.md").read_text()
    assert "SpS (K=4)" in report
    assert f"spsbench run --processes 2 --config {tmp_path / 'runs/settings.yaml'}" in report
    refused = cli("report", tmp_path / "runs")
    assert f"Name a directory with a run.json in it, such as {tmp_path / 'runs/process-0'}." in refused.err
    for index in range(2):
        assert (tmp_path / "runs" / f"process-{index}" / "summary.json").is_file()
    # The same prompts and seeds: what the processes wrote is the same, only the times differ.
    texts = [[row["text"] for row in journal(tmp_path / "runs" / f"process-{i}")] for i in range(2)]
    assert sorted(texts[0]) == sorted(texts[1])


@pytest.mark.thorough
def test_gates_and_the_hash_are_of_all_processes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They exit 4 after the summary, as of a run in one process; the folder is finished before."""
    here = SimpleNamespace(Popen=InThisProcess, DEVNULL=None)
    monkeypatch.setattr(sys.modules["spsbench.cli.run"], "subprocess", here)
    asked, out = (*SHORT, "--quiet"), tmp_path / "runs"
    other = cli(*asked, "--out", out, "--expect", "0" * 8, "--json")
    assert other.code == 4, other.err
    found = json.loads(other.out)["token_sha256"]
    assert f"--expect: the token ids hash to {found[:8]}, not to 00000000." in other.err
    again = cli(*asked, "--out", out, "--expect", found[:16], "--fail-on", "lossless")
    assert (again.code, again.err) == (0, "")
    journaled = out / "process-1" / "samples.jsonl"
    rows = [json.loads(line) for line in journaled.read_text().splitlines()]
    rows[0]["token_ids"][-1] += 1
    journaled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    differs = cli(*asked, "--out", out, "--expect", found[:16])
    assert differs.code == 4
    assert f"have no hash that all processes share, not to {found[:16]}" in differs.err
    settings = (out / "settings.yaml").read_text()
    refused = cli(*asked, "--out", out, "--seed", "5")
    assert refused.code == 2, refused.err
    assert (out / "settings.yaml").read_text() == settings


def test_what_finished_is_summarised_where_a_process_failed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"

    def measured(settings: Path, directory: Path, more: Sequence[str]) -> int:
        if directory.name == "process-0":
            return call("run", "--config", settings, "--out", directory, *more).code
        shutil.copytree(out / "process-0", directory)
        return 1 if directory.name == "process-1" else 0

    monkeypatch.setattr(module, "_exit_code_of_one_process", measured)
    done = cli(*ASKED, "--processes", "3", "--out", out, "--json")
    assert done.code == 5, done.err
    said = " ".join(done.err.split())
    assert f"--processes: 1 of 3 processes did not finish: {out / 'process-1'} ended with code 1." in said
    assert f"`spsbench run --processes 3 --config {out / 'settings.yaml'} --out {out}` goes on" in said
    summary = json.loads(done.out)
    assert [(row["processes"], row["sequences"], row["missing"]) for row in summary["rows"]] == [
        (2, 2, 0)
    ] * 2
    assert summary["complete"] is False
    assert "1 of 3 processes did not finish and are left out." in summary["warnings"]
    assert json.loads((out / "summary.json").read_text()) == summary
    assert "1 of 3 processes did not finish" in (out / "report.md").read_text()


def test_a_process_that_cannot_begin_is_the_last(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[str]()
    monkeypatch.setattr(
        module, "_exit_code_of_one_process", lambda _, directory, more: begun.append(directory.name) or 3
    )
    done = cli(*ASKED, "--processes", "3", "--out", tmp_path / "runs")
    assert (done.code, begun, done.out) == (5, ["process-0"], "")
    assert "3 of 3 processes did not finish" in done.err
    assert not (tmp_path / "runs" / "summary.json").exists()

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commandline import Cli, Result


@pytest.fixture
def run(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of a finished run as the only one in results/."""
    directory = tmp_path / "results" / "one"
    shutil.copytree(finished[0], directory)
    return directory


def test_the_latest_run_is_shown_as_it_was(cli: Cli, run: Path, finished: tuple[Path, Result]) -> None:
    result = cli("report")
    assert result.code == 0, result.err
    assert result.out == finished[1].out
    assert "results/one/report.md" in result.err


def test_json_is_the_summary(cli: Cli, run: Path) -> None:
    before = json.loads((run / "summary.json").read_text())
    result = cli("report", run, "--json", "--quiet")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == before
    assert json.loads((run / "summary.json").read_text()) == before


def test_an_unfinished_run_is_reported_from_its_journal(cli: Cli, run: Path) -> None:
    journal = run / "samples.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    (run / "summary.json").unlink()
    (run / "report.md").unlink()
    result = cli("report", run, "--json")
    summary = json.loads(result.out)
    assert sum(row["sequences"] for row in summary["rows"]) == 1
    assert sum(row["missing"] for row in summary["rows"]) == 1
    assert summary["complete"] is False
    assert f"spsbench run --resume {run}" in result.err
    assert (run / "report.md").is_file()


def test_a_folder_without_a_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli("report", tmp_path)
    assert result.code == 2
    assert "holds no run" in result.err

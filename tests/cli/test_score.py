"""Scoring apart from generating."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import SMALL, Cli

from spsbench.base.errors import UsageError


@pytest.mark.thorough_but("xsum")
@pytest.mark.parametrize("task", ["xsum", "humaneval"])
def test_scores_come_later_and_are_those_of_a_run_that_scores(cli: Cli, tmp_path: Path, task: str) -> None:
    assert cli("run", task, *SMALL, "--out", tmp_path / "at-once").code == 0
    assert cli("run", task, *SMALL, "--no-score", "--out", tmp_path / "later").code == 0
    before = json.loads((tmp_path / "later/summary.json").read_text())
    assert not any(row["metrics"] for row in before["rows"])
    result = cli("score", tmp_path / "later", "--json")
    assert result.code == 0, result.err
    assert "Scoring 2 outputs" in result.err
    expected = json.loads((tmp_path / "at-once/summary.json").read_text())
    found = json.loads(result.out)
    assert [row["metrics"] for row in found["rows"]] == [row["metrics"] for row in expected["rows"]]
    told = json.loads((tmp_path / "later/run.json").read_text())
    assert (told["sandbox"] is None) == (task == "xsum")
    assert told["token_texts"]


@pytest.mark.thorough
def test_all_outputs_or_only_those_without_scores(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cli("run", "xsum", *SMALL, "--out", run).code == 0
    assert "Scoring" not in cli("score", run, "--missing").err
    lines = (run / "scores.jsonl").read_text().splitlines(keepends=True)
    (run / "scores.jsonl").write_text(lines[0])
    assert "Scoring 1 outputs" in cli("score", run, "--missing").err
    assert "Scoring 2 outputs" in cli("score", run).err


def test_without_a_sandbox_nothing_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert cli("run", "humaneval", *SMALL, "--no-score", "--out", run).code == 0

    def none(unsafe: bool) -> str:
        raise UsageError("no sandbox holds here.")

    monkeypatch.setattr("spsbench.parts.judge.sandbox_level", none)
    result = cli("score", run)
    assert result.code == 2
    assert not (run / "scores.jsonl").read_text()

"""``run --processes``: complete runs side by side, one interval over them, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import SMALL, Cli, journal


@pytest.mark.thorough
def test_two_processes_give_one_interval_over_both(cli: Cli, tmp_path: Path) -> None:
    small = [*SMALL, "--limit", "2", "--no-score"]
    result = cli("run", *small, "--processes", "2", "--out", tmp_path / "runs", "--json", "--quiet")
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
def test_gates_and_the_hash_are_of_all_processes(cli: Cli, tmp_path: Path) -> None:
    """They exit 4 after the summary, as of a run in one process; the folder is finished before."""
    asked = ["run", *SMALL, "--no-score", "--no-proof", "--remeasure", "0", "--processes", "2", "--quiet"]
    out = tmp_path / "runs"
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

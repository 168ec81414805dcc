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
    for index in range(2):
        assert (tmp_path / "runs" / f"process-{index}" / "summary.json").is_file()
    # The same prompts and seeds: what the processes wrote is the same, only the times differ.
    texts = [[row["text"] for row in journal(tmp_path / "runs" / f"process-{i}")] for i in range(2)]
    assert sorted(texts[0]) == sorted(texts[1])

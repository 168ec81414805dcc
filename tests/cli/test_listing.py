from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import Cli


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("tasks", ["xsum", "humaneval", "nucleus", "a sandbox", "EdinburghNLP/xsum"]),
        ("pairs", ["mini", "embedded:mini/target", "gpt2", "Qwen/Qwen3-0.6B", "weights"]),
        ("protocols", ["quick", "paper", "All need nothing and come from spsbench."]),
        ("drafters", ["model", "lookup", "a draft model"]),
        ("rules", ["modified-rejection", "lenience", "NO"]),
        ("policies", ["fixed", "stop-below", "tau=0.4"]),
        (
            "engines",
            ["eager", "hf-assisted", "any", "CUDA", "transformers", 'worker:"COMMAND"', "openai:URL"],
        ),
        ("metrics", ["pass@1", "rouge2", "exact_match", "higher"]),
    ],
)
def test_names_are_listed_in_80_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, names: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli("list", command)
    assert result.code == 0
    assert result.out in cli("list").out
    for name in names:
        assert name in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_lists_are_json_too_and_say_what_is_needed_and_where_it_is_from(cli: Cli) -> None:
    found = json.loads(cli("list", "--json").out)
    kinds = {"tasks", "pairs", "protocols", "drafters", "rules", "policies", "engines", "metrics"}
    assert set(found) == kinds
    assert {row["drafter"] for row in found["drafters"]} >= {"model"}
    assert all(row["needs"] and row["from"] for rows in found.values() for row in rows)


def test_packages_are_listed_even_if_one_of_them_is_broken(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "site/mypkg-1.0.dist-info"
    information.mkdir(parents=True)
    (tmp_path / "site/mypkg.py").write_text(
        "from spsbench import MetricKind, TaskKind\n"
        "TASK = TaskKind('mine', 'A task of mine.', list, str, needs='a key')\n"
        "METRIC = MetricKind('off', 'How far off.', lambda p, o, r: [], higher_is_better=False)\n"
    )
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[spsbench.tasks]\nmypkg-task = mypkg:TASK\nbroken = mypkg:NOTHING\n"
        "[spsbench.metrics]\nmypkg-off = mypkg:METRIC\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("COLUMNS", "80")
    result = cli("list")
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= 80
    found = json.loads(cli("list", "--json").out)
    tasks = {row["task"]: row for row in found["tasks"]}
    assert tasks["mypkg-task"]["from"] == "mypkg"
    assert tasks["mypkg-task"]["needs"] == "a key"
    assert "cannot be imported" in tasks["broken"]["what"]
    metrics = {row["metric"]: row for row in found["metrics"]}
    assert (metrics["mypkg-off"]["better"], metrics["mypkg-off"]["from"]) == ("lower", "mypkg")

from __future__ import annotations

import json

import pytest
from commandline import Cli


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("tasks", ["xsum", "humaneval", "nucleus, greedy"]),
        ("pairs", ["mini", "embedded:mini/target", "gpt2", "Qwen/Qwen3-0.6B"]),
        ("protocols", ["quick", "paper", "all"]),
        ("drafters", ["model", "lookup", "a draft model"]),
        ("rules", ["modified-rejection", "lenience", "NO"]),
        ("policies", ["fixed", "stop-below", "tau=0.4"]),
        ("engines", ["eager", "hf-assisted", "any"]),
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


@pytest.mark.parametrize("command", ["tasks", "pairs", "protocols"])
def test_the_old_names_name_the_new_one(cli: Cli, command: str) -> None:
    result = cli(command)
    assert result.code == 0
    assert f"`spsbench {command}` is now `spsbench list {command}`." in result.err
    assert result.out == cli("list", command).out


def test_an_unknown_list_is_refused(cli: Cli) -> None:
    result = cli("list", "models")
    assert result.code == 2
    assert "WHAT: 'models' is unknown. Choose from tasks, pairs" in " ".join(result.err.split())


def test_lists_are_json_too(cli: Cli) -> None:
    found = json.loads(cli("list", "--json").out)
    assert set(found) == {"tasks", "pairs", "protocols", "drafters", "rules", "policies", "engines"}
    assert {row["drafter"] for row in found["drafters"]} >= {"model"}

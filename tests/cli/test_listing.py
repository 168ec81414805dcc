from __future__ import annotations

import pytest
from commandline import Cli


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("tasks", ["xsum", "humaneval", "nucleus, greedy"]),
        ("pairs", ["mini", "embedded:mini/target", "gpt2", "Qwen/Qwen3-0.6B"]),
        ("protocols", ["quick", "paper", "all"]),
    ],
)
def test_names_are_listed_in_80_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, names: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli(command)
    assert result.code == 0
    for name in names:
        assert name in result.out
    assert max(map(len, result.out.splitlines())) <= 80

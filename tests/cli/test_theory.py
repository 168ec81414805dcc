from __future__ import annotations

import json

import pytest
from commandline import Cli


def test_the_table_of_leviathan(cli: Cli) -> None:
    result = cli("theory", "--alpha", "0.8", "--c", "0.05", "--k", "4")
    assert result.code == 0
    assert "3.362" in result.out  # (1 - .8^5) / .2
    assert "2.80x" in result.out
    assert "prediction" in result.out


def test_json(cli: Cli) -> None:
    prediction = json.loads(cli("theory", "--alpha", "0.5", "--c", "0", "--k", "0,1", "--json").out)
    assert [row["tokens_per_loop"] for row in prediction["rows"]] == [1.0, 1.5]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--alpha", "1.1", "--c", "0"], "--alpha"),
        (["--alpha", "0.5", "--c", "-1"], "--c"),
        (["--alpha", "0.5", "--c", "0.1", "--k", "four"], "--k"),
    ],
)
def test_nonsense_is_refused(cli: Cli, arguments: list[str], flag: str) -> None:
    result = cli("theory", *arguments)
    assert result.code == 2
    assert f"error: {flag}" in result.err

from __future__ import annotations

import json

from support.commandline import Cli


def test_the_table_of_leviathan(cli: Cli) -> None:
    result = cli("simulate", "--formula", "--alpha", "0.8", "--cost", "0.05", "--k", "4")
    assert result.code == 0
    assert "3.362" in result.out  # (1 - .8^5) / .2
    assert "2.80x" in result.out
    assert "prediction" in result.out
    assert result.err == ""


def test_json(cli: Cli) -> None:
    prediction = json.loads(
        cli("simulate", "--formula", "--alpha", "0.5", "--cost", "0", "--k", "0,1", "--json").out
    )
    assert [row["tokens_per_loop"] for row in prediction["rows"]] == [1.0, 1.5]


def test_lookaheads_are_those_of_figure_1_unless_given(cli: Cli) -> None:
    prediction = json.loads(cli("simulate", "--formula", "--json").out)
    assert [row["k"] for row in prediction["rows"]] == list(range(8))

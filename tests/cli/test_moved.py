"""The error for an option's old spelling names the new one, where the command has it."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
from support.commandline import Cli

from spsbench.cli import moved
from spsbench.cli.main import _spellings, app

GROUP: Any = typer.main.get_command(app)
WRITTEN = dict(moved.MOVED)
TABLE = {
    "--sharpness": "--process sharpness={value}",
    "--steps": "--k {value}",
    "--input": "TASK",
    "--k": "--seed {value}",
    "--mood": "it was never read.",
}


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved, "MOVED", TABLE)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run --steps 4", "--steps is written otherwise now. Give --k 4."),
        ("run --steps=0,2", "--steps is written otherwise now. Give --k 0,2."),
        ("run xsum --steps", "--steps is written otherwise now. Give --k VALUE."),
        ("run --steps --quiet", "--steps is written otherwise now. Give --k VALUE."),
        ("run --input file.jsonl", "--input is written otherwise now. Give file.jsonl as TASK."),
        ("run --mood glad", "--mood: there is no such option any more: it was never read. Leave it out."),
    ],
)
def test_an_old_spelling_names_the_new_one(cli: Cli, typed: str, sentence: str) -> None:
    result = cli(*typed.split())
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def test_a_value_with_a_space_is_quoted_as_a_shell_wants_it(cli: Cli) -> None:
    assert "Give --k '1 2'." in cli("run", "--steps", "1 2").err


def test_a_command_without_the_new_option_says_that_it_has_neither(cli: Cli) -> None:
    result = cli("report", "--steps", "4")
    assert result.code == 2
    assert "No such option: --steps" in result.err


def test_what_stands_after_two_hyphens_is_an_argument(cli: Cli) -> None:
    assert "written otherwise" not in cli("run", "--", "--steps").err


def test_an_option_that_another_command_still_has_is_no_old_one(cli: Cli) -> None:
    assert "written otherwise" not in cli("run", "--k", "x").err


@pytest.mark.parametrize("flag", [flag for flag, new in WRITTEN.items() if not new.endswith(".")])
def test_a_command_has_the_new_option_in_place_of_the_old(flag: str) -> None:
    spellings = map(_spellings, GROUP.commands.values())
    assert any(WRITTEN[flag].split()[0] in known and flag not in known for known in spellings)

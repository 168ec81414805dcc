"""The error for an option's old spelling names the new one, where the command has it."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
from support.commandline import Cli

from spsbench.cli.main import COMMANDS, _spellings, app
from spsbench.cli.moved import MOVED, Moved

GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run --beams 4", "--beams is written otherwise now. Give --sampling beam:width=4."),
        ("run --beams=0,2", "--beams is written otherwise now. Give --sampling beam:width=0,2."),
        ("run xsum --beams", "--beams is written otherwise now. Give --sampling beam:width=VALUE."),
        ("run --beams --quiet", "--beams is written otherwise now. Give --sampling beam:width=VALUE."),
        ("run --prompts file.jsonl", "--prompts is written otherwise now. Give file.jsonl as TASK."),
    ],
)
def test_an_old_spelling_names_the_new_one(cli: Cli, typed: str, sentence: str) -> None:
    result = cli(*typed.split())
    assert (result.code, result.out) == (2, "")
    assert sentence in " ".join(result.err.split())


def test_a_value_with_a_space_is_quoted_as_a_shell_wants_it(cli: Cli) -> None:
    assert "Give --process 'bad_words=1 2'." in cli("run", "--bad-words", "1 2").err


@pytest.mark.parametrize(("command", "old"), [("report", "--beams"), ("run", "--greedy")])
def test_a_command_that_never_had_the_option_says_so(cli: Cli, command: str, old: str) -> None:
    result = cli(command, old, "4")
    assert result.code == 2
    assert f"No such option: {old}" in result.err


def test_what_stands_after_two_hyphens_is_an_argument(cli: Cli) -> None:
    assert "written otherwise" not in cli("run", "--", "--beams").err


@pytest.mark.parametrize("typed", ["audit --contexts x", "replay --curve --k x"])
def test_an_option_that_another_command_still_has_is_no_old_one(cli: Cli, typed: str) -> None:
    assert "written otherwise" not in cli(*typed.split()).err


@pytest.mark.parametrize("row", MOVED)
def test_a_command_has_the_new_option_in_place_of_the_old(row: Moved) -> None:
    had = row.commands.split() or [*COMMANDS]
    spellings = [_spellings(GROUP.commands[name]) for name in had if name in COMMANDS]
    assert any(row.new.split()[0] in known and row.old not in known for known in spellings) or not spellings

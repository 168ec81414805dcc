"""docs/simulation.md is true: every command there prints what stands below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commandline import call

PAGE = Path(__file__).parents[4] / "docs/simulation.md"
SHOWN = re.findall(r"```\nspsbench ([^\n]*)\n```\n\n```\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def test_the_page_shows_commands() -> None:
    assert len(SHOWN) == PAGE.read_text().count("\nspsbench simulate ") > 6


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_of_the_page_prints_what_it_shows(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = call(*command.split())
    assert result.code == 0
    printed = "\n".join(line.rstrip() for line in result.out.strip("\n").splitlines())
    assert re.fullmatch(pattern(shown), printed, re.DOTALL)


def pattern(shown: str) -> str:
    """Match what a command prints, where a line of ``...`` stands for lines that are left out."""
    return "\n.+".join(map(re.escape, shown.split("\n...")))


def test_only_what_is_marked_is_left_out() -> None:
    of_lines = pattern("a\n...\nd")
    assert re.fullmatch(of_lines, "a\nb\nc\nd", re.DOTALL)
    assert not any(re.fullmatch(of_lines, text, re.DOTALL) for text in ("a\nd", "b\nc\nd", "a\nb\ne"))

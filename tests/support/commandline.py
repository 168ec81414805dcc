"""The command line as a function, for tests."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spsbench.cli import main as commandline

SMALL = ("--limit", "1", "--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false")
"""Options of a run that takes a moment."""

ALONE = ("--threads", "1", "--no-score", "--no-proof", "--set", "warmup=false", "--quiet")
"""Options of a run that is looked at for its loops."""

BRIEF = ("--data", Path(__file__).with_name("short_news.jsonl"))
"""Documents of a sentence for ``xsum``: half of a small run's time goes into reading longer ones."""


# Typer makes its commands from their signatures anew at every call; here they are made once.
typer.main.get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class Result:
    """What a command answered."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]

ABSENT = {name for names in commandline._PANELS.values() for name in names} - commandline.COMMANDS.keys()
"""Commands of parts that were deleted; tests that type one are skipped."""


def is_present(typed: str | Sequence[object]) -> bool:
    """Whether a command line, after the program's name, is of a command that is there."""
    words = typed.split() if isinstance(typed, str) else [*map(str, typed)]
    command = next((word for word in words if not word.startswith("-")), None)
    if command == "verify" and "--engine" in words:
        command = "audit"  # which carries it out
    return command not in ABSENT


REPEATABLE = ("--set", "--process", "--draft", "--task", "--evaluated")
"""Options that some command collects."""


def once(arguments: Sequence[object]) -> list[str]:
    """Arguments in which an option that comes again replaces the earlier one; typed like this it is refused.

    So ``*SMALL, "--limit", 3`` changes one option of a bundle.
    """
    typed = [str(argument) for argument in arguments]
    kept: list[str] = []
    for place, argument in enumerate(typed):
        if argument.startswith("--") and argument not in REPEATABLE and argument in kept:
            first = kept.index(argument)
            has_value = place + 1 < len(typed) and not typed[place + 1].startswith("--")
            del kept[first : first + (2 if has_value else 1)]
        kept.append(argument)
    return kept


def call(*arguments: object) -> Result:
    """Run a command in this process, with ``once`` applied; of a part that was deleted skip the test."""
    if not is_present(arguments):
        pytest.skip("the part of this command was deleted")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = commandline.main(once(arguments))
    return Result(code, out.getvalue(), err.getvalue())


def journal(directory: Path) -> list[dict[str, Any]]:
    """The sequences that a run has on the disk; how often others made it time one again does not matter."""
    path = directory / "samples.jsonl"
    rows = map(json.loads, path.read_text().splitlines() if path.is_file() else ())
    return [row for row in rows if "attempt" not in row]


def sampled_run(run: Path, *flags: str) -> Path:
    """A run of ``xsum`` with ArS beside what is asked for, under the law that leaves most to chance."""
    asked = ("run", "xsum", *BRIEF, "--limit", "12", "--top-p", "1", *flags)
    done = call(*asked, *ALONE, "--out", run)
    assert done.code == 0, done.err
    return run

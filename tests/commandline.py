"""The command line as a function, for tests."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

from spsbench.cli.main import main

SMALL = ("--limit", "1", "--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false")
"""Options of a run that takes a moment."""


@dataclass(frozen=True)
class Result:
    """What a command answered."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def call(*arguments: object) -> Result:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Result(code, out.getvalue(), err.getvalue())

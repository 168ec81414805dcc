"""``spsbench compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Directory of the run that is the yardstick.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Directory of the run that is judged.")],
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate", metavar="2%", help="Exit 4 if an arm of B is slower than in A by more than this."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare even runs that answer different questions.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Set one run against another, paired where prompts agree.

    The gate looks at the lower end of the 95% interval of the time ratio, so that noise alone seldom
    fails it.
    """
    from spsbench.cli.comparing import compare_runs

    compare_runs(a, b, gate, force=force, as_json=json, quiet=quiet)

"""``spsbench report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Directories of runs; several are shown side by side. Default: the latest in results/.",
        show_default=False,
    ),
]
Html = Annotated[
    bool, typer.Option("--html", rich_help_panel=options.OUTPUT, help="Write a page with plots and traces.")
]
Csv = Annotated[
    bool, typer.Option("--csv", rich_help_panel=options.OUTPUT, help="Print CSV alone on stdout.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        rich_help_panel=options.OUTPUT,
        help="Where --html writes. Default: report.html in the run, comparison.html for several.",
        show_default=False,
    ),
]


def report(
    runs: Runs = None,
    html: Html = False,
    csv: Csv = False,
    json: options.Json = False,
    out: Out = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show results again and write the report with its figures, from what the runs recorded."""
    from spsbench.cli.reporting import show_runs
    from spsbench.errors import UsageError

    if csv and json:
        raise UsageError("--csv and --json are given together.", flag="--csv", remedy="Leave one out.")
    if out is not None and not html:
        raise UsageError(f"{out} is given without --html.", flag="--out", remedy="Add --html.")
    show_runs(runs, html=html, csv=csv, json=json, out_file=out, quiet=quiet)

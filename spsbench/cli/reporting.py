"""What ``report`` does: derive each run, show one or compare several, write the page."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from spsbench.cli.console import out, print_json, say
from spsbench.cli.derive import derive
from spsbench.cli.resume import resume_command
from spsbench.errors import SpsbenchError, UsageError
from spsbench.paths import results_dir
from spsbench.report.figures import Gallery
from spsbench.report.measured import Measured
from spsbench.store import latest

Derived = tuple[Path, Measured, Gallery]

COMPARISON_FILE = "comparison.html"


def show_runs(
    named: Sequence[Path] | None, *, html: bool, csv: bool, json: bool, out_file: Path | None, quiet: bool
) -> None:
    """Report what can be reported.

    Raises:
        UsageError: no run is there, or one of several could not be read (after the others were shown).
    """
    runs, problems = _derived(list(dict.fromkeys(named or [latest(results_dir())])))
    _print(runs, csv=csv, json=json)
    for directory, measured, _ in runs:
        if not measured.summary["complete"]:
            say(f"{directory} is not complete. Continue it with:\n  {resume_command(directory)}", quiet=quiet)
        say(f"The report is in {directory / 'report.md'}", quiet=quiet)
    if html:
        say(f"The page is in {_write_page(runs, out_file)}", quiet=quiet)
    if problems:
        raise problems[0]


def _derived(directories: Sequence[Path]) -> tuple[list[Derived], list[SpsbenchError]]:
    """Every run that can be read, under names that differ; what is wrong with the others."""
    runs: list[Derived] = []
    problems: list[SpsbenchError] = []
    for directory in directories:
        try:
            runs.append((directory, *derive(directory)))
        except SpsbenchError as problem:
            problems.append(problem)
    if not runs:
        raise problems[0]
    names = [measured.name for _, measured, _ in runs]
    if len(set(names)) < len(names):
        runs = [(path, dataclasses.replace(m, name=str(path)), drawn) for path, m, drawn in runs]
    for other in problems[1:]:
        say(f"Left out: {other}")
    return runs, problems


def _print(runs: Sequence[Derived], *, csv: bool, json: bool) -> None:
    """Results on stdout: JSON or CSV alone, else tables."""
    if csv:
        from spsbench.report.flat import to_csv

        sys.stdout.write(to_csv([(measured.name, measured.summary) for _, measured, _ in runs]))
    elif json:
        single = [dict(measured.summary) for _, measured, _ in runs]
        several = [{"run": str(path), **measured.summary} for path, measured, _ in runs]
        print_json(single[0] if len(runs) == 1 else {"runs": several})
    elif len(runs) == 1:
        from spsbench.report.terminal import show

        show(dict(runs[0][1].summary), out())
    else:
        from spsbench.report.side_by_side import screen

        out().print(screen([measured for _, measured, _ in runs]))


def _write_page(runs: Sequence[Derived], named: Path | None) -> Path:
    """Write the page and answer where it is."""
    from spsbench.report.html import page
    from spsbench.store.files import write_text

    path = named or (runs[0][0] / "report.html" if len(runs) == 1 else Path(COMPARISON_FILE))
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder.", flag="--out", remedy="Name a file in a folder.")
    write_text(path, page([(measured, drawn) for _, measured, drawn in runs]))
    return path

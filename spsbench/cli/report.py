"""``spsbench report``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from spsbench.cli import completion, options
from spsbench.cli.console import out, print_json, say
from spsbench.cli.measure import resume_command
from spsbench.errors import SpsbenchError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from spsbench.report.figures import Gallery
    from spsbench.report.measured import Measured

Runs = Annotated[
    list[Path] | None,
    options.argument(
        "RUN...",
        "Run directories; several are shown side by side. Default: the latest in results/.",
        completion.runs,
    ),
]
Html = Annotated[
    bool, options.option("--html", "", options.FIRST, "Write an HTML page with figures and token traces.")
]
Csv = Annotated[
    bool,
    options.option(
        "--csv", "", options.FIRST, "Print tidy CSV, one line an arm, and nothing else on stdout."
    ),
]
Latex = Annotated[
    bool,
    options.option(
        "--latex", "", options.FIRST, "Print LaTeX tables (booktabs), and nothing else on stdout."
    ),
]
Out = Annotated[
    Path | None,
    options.option(
        "--out",
        "FILE",
        options.FIRST,
        "Where --html writes. Default: report.html in the run, comparison.html for several.",
    ),
]


def report(
    runs: Runs = None,
    html: Html = False,
    csv: Csv = False,
    latex: Latex = False,
    json: options.Json = False,
    out: Out = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show a finished run again, and write its report and figures.

    Example: spsbench report results/RUN --html
    """
    form = _form({"--csv": csv, "--latex": latex, "--json": json})
    if out is not None and not html:
        raise UsageError(f"{out} is given without --html.", flag="--out", remedy="Add --html.")
    show_runs(runs, html=html, form=form, out_file=out, quiet=quiet)


Form = Literal["--csv", "--latex", "--json"]
"""What stdout holds alone, by its option."""


def _form(asked: Mapping[Form, bool]) -> Form | None:
    """The one that is asked for; None for tables.

    Raises:
        UsageError: there are several.
    """
    named = [name for name, is_asked in asked.items() if is_asked]
    if len(named) > 1:
        together = " and ".join(named)
        raise UsageError(f"{together} are given together.", flag=named[0], remedy="Leave all but one out.")
    return named[0] if named else None


def derive(directory: Path, *, narrow: bool = False) -> tuple[Measured, Gallery]:
    """A run, finished or not, with its figures, for a phone too if ``narrow``.

    Writes ``summary.json``, ``figures/`` and ``report.md`` if that can be done: someone else's run can
    be looked at all the same.

    Raises:
        UsageError: the directory holds no run, or one of another schema.
        SpsbenchError: the run is damaged.
    """
    from spsbench.report import gallery
    from spsbench.report.figures import draw
    from spsbench.report.figures.style import save
    from spsbench.report.markdown import render
    from spsbench.report.measured import Measured
    from spsbench.store import RunStore, write_summary
    from spsbench.summary import summarise

    with RunStore.open(directory) as store:
        frames, info = store.frames(), store.run_info()
        summary = summarise(frames.samples, frames.loops, info, frames.evidence)
        measured = Measured(
            name=directory.resolve().name,
            summary=summary,
            run=info,
            samples=frames.samples,
            loops=frames.loops,
            tokens=frames.tokens,
        )
        drawn = draw(measured, narrow=narrow)
        try:
            write_summary(directory, summary)
            for plate in drawn.plates:
                save(plate, directory / gallery.FOLDER)
            store.write_report(render(summary, info | gallery.described(drawn)))
        except SpsbenchError as problem:
            say(f"Not written: {problem}")
    return measured, drawn


Derived: TypeAlias = "tuple[Path, Measured, Gallery]"

COMPARISON_FILE = "comparison.html"


def show_runs(
    named: Sequence[Path] | None, *, html: bool, form: Form | None, out_file: Path | None, quiet: bool
) -> None:
    """Report what can be reported.

    Raises:
        UsageError: no run is there, or one of several could not be read (after the others were shown).
    """
    from spsbench.store import latest

    runs, problems = _derived(list(dict.fromkeys(named or [latest(results_dir())])), narrow=html)
    _print(runs, form, quiet=quiet)
    for directory, measured, _ in runs:
        if not measured.summary["complete"]:
            say(f"{directory} is not complete. Continue it with:\n  {resume_command(directory)}", quiet=quiet)
        say(f"The report is in {directory / 'report.md'}", quiet=quiet)
    if html:
        say(f"The page is in {_write_page(runs, out_file)}", quiet=quiet)
    if problems:
        raise problems[0]


def _derived(directories: Sequence[Path], *, narrow: bool) -> tuple[list[Derived], list[SpsbenchError]]:
    """Every run that can be read, under names that differ; what is wrong with the others."""
    runs: list[Derived] = []
    problems: list[SpsbenchError] = []
    for directory in directories:
        try:
            runs.append((directory, *derive(directory, narrow=narrow)))
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


def _print(runs: Sequence[Derived], form: Form | None, *, quiet: bool) -> None:
    """Results on stdout: JSON, CSV or LaTeX alone, else tables unless ``quiet``."""
    if form == "--csv":
        from spsbench.report.tidy import to_csv

        sys.stdout.write(to_csv([measured for _, measured, _ in runs]))
    elif form == "--latex":
        from spsbench.report.latex import to_latex

        sys.stdout.write(to_latex([measured for _, measured, _ in runs]))
    elif form == "--json":
        single = [dict(measured.summary) for _, measured, _ in runs]
        several = [{"run": str(path), **measured.summary} for path, measured, _ in runs]
        print_json(single[0] if len(runs) == 1 else {"runs": several})
    elif quiet:
        return
    elif len(runs) == 1:
        from spsbench.report.terminal import show

        show(runs[0][1].summary, out())
    else:
        from spsbench.report.comparison import side_by_side

        out().print(side_by_side([measured for _, measured, _ in runs]))


def _write_page(runs: Sequence[Derived], named: Path | None) -> Path:
    """Write the page and answer where it is."""
    from spsbench.report.html.page import page
    from spsbench.store.files import write_text

    path = named or (runs[0][0] / "report.html" if len(runs) == 1 else Path(COMPARISON_FILE))
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder.", flag="--out", remedy="Create it first.")
    write_text(path, page([(measured, drawn) for _, measured, drawn in runs]))
    return path

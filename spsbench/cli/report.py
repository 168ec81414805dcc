"""``spsbench report``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.paths import results_dir
from spsbench.cli.console import out as console
from spsbench.cli.console import print_json, say
from spsbench.cli.messages import RunIncomplete
from spsbench.cli.options import Common, asks, option
from spsbench.cli.run import resume_command

if TYPE_CHECKING:
    from spsbench.report.figures import Gallery
    from spsbench.report.measured import Measured


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Common):
    """The options of ``report``."""

    run: list[Path] | None = option(
        "[RUN...]",
        "Run directories; several are shown side by side. Default: the latest in results/.",
        names="runs",
    )
    html: bool = option("--html", "Write an HTML page with figures and token traces.")
    csv: bool = option("--csv", "Print tidy CSV, one line an arm, and nothing else on stdout.")
    latex: bool = option("--latex", "Print LaTeX tables (booktabs), and nothing else on stdout.")
    out: Path | None = option(
        "--out FILE", "Where --html writes. Default: report.html in the run, comparison.html for several."
    )


@asks(ReportOptions)
def report(asked: ReportOptions) -> None:
    """Show a finished run again, and write its report and figures.

    Example: spsbench report results/RUN --html
    """
    from spsbench.store import latest

    runs, problems = _readable_runs(list(dict.fromkeys(asked.run or [latest(results_dir())])))
    alone = (
        asked.csv or asked.latex or asked.json
    )  # stdout is for another program: no figures unless a page is asked for
    _print(runs, csv=asked.csv, latex=asked.latex, json=asked.json, quiet=asked.quiet)
    galleries = []
    for directory, measured in runs:  # the tables came first, since figures take seconds
        if not measured.summary["complete"]:
            say(RunIncomplete(directory, resume_command(directory)), quiet=asked.quiet)
        if asked.html or not alone:
            galleries.append(write(directory, measured, narrow=asked.html))
            say(f"The report is in {directory / 'report.md'}", quiet=asked.quiet)
    if asked.html:
        say(f"The page is in {_write_page(runs, galleries, asked.out)}", quiet=asked.quiet)
    if problems:
        raise problems[0]


def derive(directory: Path, *, narrow: bool = False) -> tuple[Measured, Gallery]:
    """Return and write a run with its figures, finished or not; with ``narrow`` for a phone too."""
    measured = read(directory)
    return measured, write(directory, measured, narrow=narrow)


def read(directory: Path) -> Measured:
    """Read a run, finished or not."""
    from spsbench.report.measured import Measured
    from spsbench.stats.summary import summarise
    from spsbench.store import RunStore

    with RunStore.open(directory) as store:
        frames = store.frames()
        info = store.run_info()
    return Measured(
        name=directory.resolve().name,
        summary=summarise(frames.samples, frames.loops, info, frames.evidence),
        run=info,
        samples=frames.samples,
        loops=frames.loops,
        tokens=frames.tokens,
    )


def write(directory: Path, measured: Measured, *, narrow: bool = False) -> Gallery:
    """Draw a run's figures, and write ``summary.json``, ``figures/`` and ``report.md`` if that can be done.

    Someone else's run can be looked at all the same: what cannot be written is named.
    """
    from spsbench.report import sections
    from spsbench.report.figures import draw
    from spsbench.report.figures.style import save
    from spsbench.report.sections import render
    from spsbench.store import RunStore, write_summary

    drawn = draw(measured, narrow=narrow)
    try:
        write_summary(directory, measured.summary)
        for plate in drawn.plates:
            save(plate, directory, sections.FOLDER)
        with RunStore.open(directory) as store:
            store.write_report(render(measured.summary, {**measured.run, "gallery": drawn}))
    except SpsbenchError as problem:
        say(f"Not written: {problem}")
    return drawn


Readable: TypeAlias = "Sequence[tuple[Path, Measured]]"


def _readable_runs(directories: Sequence[Path]) -> tuple[Readable, list[SpsbenchError]]:
    """Under distinct names; and what is wrong with the others."""
    runs: list[tuple[Path, Measured]] = []
    problems: list[SpsbenchError] = []
    for directory in directories:
        try:
            runs.append((directory, read(directory)))
        except SpsbenchError as problem:
            problems.append(problem)
    if not runs:
        raise problems[0]
    if len({measured.name for _, measured in runs}) < len(runs):
        runs = [(path, dataclasses.replace(measured, name=str(path))) for path, measured in runs]
    for other in problems[1:]:
        say(f"Left out: {other}")
    return runs, problems


def _print(runs: Readable, *, csv: bool, latex: bool, json: bool, quiet: bool) -> None:
    """Results on stdout: JSON, CSV or LaTeX alone, else tables unless ``quiet``."""
    from spsbench.report.exports import to_csv, to_latex
    from spsbench.report.results import side_by_side
    from spsbench.report.sections import show

    every = [measured for _, measured in runs]
    if csv or latex:
        sys.stdout.write(to_csv(every) if csv else to_latex(every))
    elif json:
        several = [{"run": str(path), **measured.summary} for path, measured in runs]
        print_json(dict(every[0].summary) if len(runs) == 1 else {"runs": several})
    elif not quiet and len(runs) == 1:
        show(every[0].summary, console())
    elif not quiet:
        console().print(side_by_side(every))


def _write_page(runs: Readable, galleries: Sequence[Gallery], named: Path | None) -> Path:
    from spsbench.base.files import write_text
    from spsbench.report.html import page

    path = named or (runs[0][0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder.", flag="--out", remedy="Create it first.")
    shown = [(measured, drawn) for (_, measured), drawn in zip(runs, galleries, strict=True)]
    write_text(path, page(shown))
    return path

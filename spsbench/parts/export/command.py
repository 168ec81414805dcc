"""``spsbench export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import IncompleteError, make_folder, unknown
from spsbench.cli import Common, asks, option, print_json, say
from spsbench.parts.export import every_eval_ever, lm_eval
from spsbench.report import counted

if TYPE_CHECKING:
    from spsbench.parts.export.exported import ExportedRun
    from spsbench.parts.export.messages import NoBinaryScore


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Common):
    """The options of ``export``."""

    run: Path = option("RUN", "Directory of a finished run.", names="runs")
    to: str = option(
        "--to FORMAT", "lm-eval (samples_*.jsonl) or every-eval-ever (records and samples).", required=True
    )
    out: Path | None = option("--out DIR", "Where the files are written. Default: RUN/FORMAT.")


@asks(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a run in the format of another harness: a file for each arm.

    Example: spsbench export results/RUN --to lm-eval
    """
    if options.to not in FORMATS:
        raise unknown(options.to, FORMATS, "--to")
    from spsbench.parts.export.exported import read

    run = read(options.run)
    if not run.summary["complete"]:
        raise IncompleteError(
            f"{options.run} is not complete.",
            flag="RUN",
            remedy=f"Continue it: spsbench run --resume {options.run}",
        )
    folder = options.out or options.run / options.to
    make_folder(folder, "--out")
    written, left_out = FORMATS[options.to](run, folder)
    notes = [str(each) for each in left_out]
    if options.json:
        print_json({"format": options.to, "files": [str(path) for path in written], "left_out": notes})
    for note in notes:
        say(f"Left out: {note}", quiet=options.quiet)
    say(f"{counted(len(written), 'file')} in {folder}", quiet=options.quiet)


FORMATS: Mapping[str, Callable[[ExportedRun, Path], tuple[list[Path], list[NoBinaryScore]]]] = {
    "lm-eval": lm_eval.write,
    "every-eval-ever": every_eval_ever.write,
}
"""What writes a run's files into a folder, by format; with what it had to leave out."""

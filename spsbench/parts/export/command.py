"""``spsbench export``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import IncompleteError, make_folder, unknown, write_json, write_rows
from spsbench.cli import Common, asks, option, print_json, say
from spsbench.report import counted

if TYPE_CHECKING:
    from spsbench.parts.export.exported import ExportedRun


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
    written, notes = FORMATS[options.to](run, folder)
    if options.json:
        print_json({"format": options.to, "files": [str(path) for path in written], "left_out": notes})
    for note in notes:
        say(f"Left out: {note}", quiet=options.quiet)
    say(f"{counted(len(written), 'file')} in {folder}", quiet=options.quiet)


def _lm_eval(run: ExportedRun, folder: Path) -> tuple[list[Path], list[str]]:
    from spsbench.parts.export.lm_eval import lines

    date = str(run.run.get("created_utc") or "")[:26].replace(":", "-")
    task = Path(str(run.run.get("task"))).stem
    paths = list[Path]()
    for arm in run.arms:
        name = f"samples_{task}-{arm.name}_{date}.jsonl"
        path = folder / name.replace("/", "-")  # of a worker's arm its command is a part
        write_rows(path, lines(arm))
        paths.append(path)
    return paths, []


def _every_eval_ever(run: ExportedRun, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the run in the format of every-eval-ever; return files and remarks."""
    from spsbench.parts.export import every_eval_ever as schema

    now_s = int(time.time())
    paths = list[Path]()
    notes = list[str]()
    for arm in run.arms:
        record = schema.record(run, arm, now_s)
        place = schema.place(run, arm)
        path = folder / f"{place}.json"
        make_folder(path.parent, "--out")
        if (score := schema.binary_score(arm)) is None:
            notes.append(f"{arm.name}: its samples, which no metric calls right or wrong")
        else:
            samples = path.with_name(f"{path.stem}_samples.jsonl")
            rows = list(schema.instances(run, arm, record["evaluation_id"], score))
            write_rows(samples, rows)
            record |= schema.detailed(f"{place}_samples.jsonl", samples, len(rows))
            paths.append(samples)
        paths.append(path)
        write_json(path, record)
    return paths, notes


Exporter = Callable[["ExportedRun", Path], tuple[list[Path], list[str]]]

FORMATS: Mapping[str, Exporter] = {"lm-eval": _lm_eval, "every-eval-ever": _every_eval_ever}
"""What writes a run's files into a folder, by format; with what it had to leave out."""

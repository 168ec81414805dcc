"""Results of a run, derived afresh from its journal."""

from __future__ import annotations

from pathlib import Path

from spsbench.analysis.summary import summarise
from spsbench.cli.console import say
from spsbench.errors import SpsbenchError
from spsbench.report import gallery
from spsbench.report.figures import Gallery, draw
from spsbench.report.figures.printing import save
from spsbench.report.markdown import render
from spsbench.report.measured import Measured
from spsbench.store import RunStore


def derive(directory: Path) -> tuple[Measured, Gallery]:
    """A run, finished or not, with its figures.

    Writes ``summary.json``, ``figures/`` and ``report.md`` if that can be done: someone else's run can
    be looked at all the same.

    Raises:
        UsageError: the directory holds no run, or one of another schema.
        SpsbenchError: the run is damaged.
    """
    with RunStore.open(directory) as store:
        frames, info = store.frames(), store.run_info()
        summary = summarise(frames.samples, frames.loops, info)
        measured = Measured(
            name=directory.resolve().name,
            summary=summary,
            run=info,
            samples=frames.samples,
            loops=frames.loops,
            tokens=frames.tokens,
        )
        drawn = draw(measured)
        try:
            store.write_summary(summary)
            for plate in drawn.plates:
                save(plate, directory / gallery.FOLDER)
            store.write_report(render(summary, info | gallery.described(drawn)))
        except SpsbenchError as problem:
            say(f"Not written: {problem}")
    return measured, drawn

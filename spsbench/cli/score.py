"""``spsbench score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import judges, options


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)],
    missing: Annotated[
        bool, typer.Option("--missing", help="Only outputs that have no score yet. Default: all of them.")
    ] = False,
    n_workers: judges.Workers = "auto",
    timeout: judges.Timeout = "3",
    unsafe_exec: judges.UnsafeExec = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score a run's outputs, now or anew: generating and judging can be on different machines."""
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.config import resolve
    from spsbench.execution import sandbox_rung
    from spsbench.runner import conclude
    from spsbench.runner import score as score_outputs
    from spsbench.store import RunStore
    from spsbench.tasks.catalogue import load_task

    told = {"judge_timeout_s": judges.timeout_of(timeout), "judge_workers": judges.workers_of(n_workers)}
    with RunStore.open(run, writable=True) as store:
        name = resolve({}, run / "config.yaml").task
        task = load_task(name, unsafe_exec=unsafe_exec, **told)
        if task.runs_code:
            store.note(sandbox=sandbox_rung(unsafe_exec))
        score_outputs(
            task, store, lambda count: say(f"Scoring {count} outputs", quiet=quiet), again=not missing
        )
        summary = conclude(store, None)
    show_summary(summary, as_json=json)
    say(f"Everything is in {run}", quiet=quiet)

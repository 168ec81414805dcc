"""``spsbench score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spsbench.cli import judge, options

if TYPE_CHECKING:
    from spsbench.store import RunStore
    from spsbench.tasks.task import Task


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)],
    missing: Annotated[
        bool, typer.Option("--missing", help="Only outputs that have no score yet. Default: all of them.")
    ] = False,
    n_workers: judge.Workers = "auto",
    timeout: judge.Timeout = "3",
    unsafe_exec: judge.UnsafeExec = False,
    extract: Annotated[
        str | None,
        options.option(
            "--extract",
            "auto|none|fence",
            options.FIRST,
            "Code from an answer's fence, or the answer as it is. Default: the run's own setting.",
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score a run's outputs, now or anew: generating and judging can be on different machines."""
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.config import resolve
    from spsbench.execution import sandbox_level
    from spsbench.metrics.registry import records
    from spsbench.runner import finalize
    from spsbench.runner import score as score_outputs
    from spsbench.store import RunStore
    from spsbench.tasks.catalogue import load_task

    told = {"judge_timeout_s": judge.timeout_of(timeout), "judge_workers": judge.workers_of(n_workers)}
    with RunStore.open(run, writable=True) as store:
        config = resolve({"extract": extract}, run / "config.yaml")
        task = load_task(config.task, unsafe_exec=unsafe_exec, extract=config.extract, **told)
        if task.runs_code:
            store.note(sandbox=sandbox_level(unsafe_exec))
            _note_rule(store, task, extract, only_missing=missing)
        store.note(headline_metric=task.headline, metrics=records(task.metrics))
        score_outputs(
            task, store, lambda count: say(f"Scoring {count} outputs", quiet=quiet), again=not missing
        )
        summary = finalize(store, None, task)
    show_summary(summary, as_json=json)
    say(f"Everything is in {run}", quiet=quiet)


def _note_rule(store: RunStore, task: Task, asked: str | None, *, only_missing: bool) -> None:
    """Record how code is taken from the answers, also in the identity: a run has one rule.

    Raises:
        UsageError: some outputs would have scores by another rule, or they are no answers of their own.
    """
    from spsbench.errors import UsageError
    from spsbench.tasks import answers

    info, prompt = store.run_info(), next(iter(store.prompts()), None)
    if prompt is None:
        return
    if prompt.begun and asked not in (None, "auto"):
        raise UsageError(
            "the answers of this run were begun for the model: what it wrote is the rest of the code.",
            flag="--extract",
            remedy="Leave it out.",
        )
    chat, rule = prompt.chat, task.extraction(prompt)
    before = info.get("extract") or answers.extraction_rule("auto", chat)
    if only_missing and rule != before and any(sample.scores for sample in store.samples()):
        raise UsageError(
            f"the outputs that have scores were judged with {before}, the missing ones would be with {rule}.",
            flag="--missing",
            remedy="Leave it out to score all of them anew.",
        )
    identity = {key: value for key, value in (info.get("identity") or {}).items() if key != "extract"}
    store.note(extract=rule, identity=identity | answers.extraction_identity(rule, chat))

"""``spsbench score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spsbench.cli import completion, judge, options
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.store import RunStore
    from spsbench.tasks.task import Task


def score(
    source: Annotated[
        Path,
        options.argument(
            "RUN or SAMPLES",
            "Run directory, or samples as JSON lines with task_id and completion (.gz too).",
            completion.runs,
        ),
    ],
    missing: Annotated[
        bool,
        options.option(
            "--missing", "", options.FIRST, "RUN: only outputs without a score. Default: all outputs."
        ),
    ] = False,
    n_workers: judge.Workers = "auto",
    timeout: judge.Timeout = "3",
    unsafe_exec: judge.UnsafeExec = False,
    trust: options.Trust = False,
    extract: judge.Extract = None,
    out: judge.Results = None,
    k: judge.Ks = None,
    problem_file: judge.ProblemFile = None,
    ignore_missing: judge.IgnoreMissing = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score outputs, elsewhere or later: those of a run, or HumanEval samples of any engine.

    Example: spsbench score results/RUN --missing
    """
    if source.is_dir():
        for flag, given in (
            *(("--out", out), ("--k", k), ("--problem-file", problem_file)),
            ("--ignore-missing", ignore_missing or None),
        ):
            _refuse(flag, given, "a file of samples", f"{source} is a run")
        limits = n_workers, timeout
        score_run(source, limits, unsafe_exec, extract, missing=missing, trust=trust, json=json, quiet=quiet)
        return
    for flag, is_given in (("--missing", missing), ("--trust", trust)):
        _refuse(flag, is_given or None, "a run", f"{source} is a file of samples")
    asked = judge.Judging(out, k, n_workers, timeout, problem_file, ignore_missing, unsafe_exec, extract)
    judge.judge_samples(source, asked, json=json, quiet=quiet)


def _refuse(flag: str, given: object, belongs: str, instead: str) -> None:
    if given is not None:
        raise UsageError(f"it is an option for {belongs}, and {instead}.", flag=flag, remedy="Leave it out.")


def score_run(
    run: Path,
    limits: tuple[str, str],
    unsafe_exec: bool,
    extract: str | None,
    *,
    missing: bool,
    trust: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Score the outputs of a run and show its summary."""
    workers, timeout_s = judge.workers_of(limits[0]), judge.timeout_of(limits[1])
    from spsbench.store.opening import read_run

    read_run(run)  # what is not a run is refused before torch is imported
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.config import resolve
    from spsbench.config.trust import require_trusted
    from spsbench.execution import sandbox_level
    from spsbench.metrics.registry import records
    from spsbench.runner import finalize
    from spsbench.runner import score as score_outputs
    from spsbench.store import RunStore
    from spsbench.tasks.catalogue import load_task

    judging: dict[str, Any] = {"judge_timeout_s": timeout_s, "judge_workers": workers}
    with RunStore.open(run, writable=True) as store:
        config = resolve({"extract": extract}, run / "config.yaml")
        require_trusted(config, ("task",), run, trust=trust)
        task = load_task(config.task, unsafe_exec=unsafe_exec, extract=config.extract, **judging)
        if task.runs_code:
            store.note(sandbox=sandbox_level(unsafe_exec))
            _note_rule(store, task, extract, only_missing=missing)
        store.note(headline_metric=task.headline, metrics=records(task.metrics))
        score_outputs(
            task, store, lambda count: say(f"Scoring {count} outputs", quiet=quiet), again=not missing
        )
        summary = finalize(store, None, task)
    show_summary(summary, as_json=json, quiet=quiet)
    say(f"Everything is in {run}", quiet=quiet)


def _note_rule(store: RunStore, task: Task, asked: str | None, *, only_missing: bool) -> None:
    """Record how code is taken from the answers, also in the identity: a run has one rule."""
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
            remedy="Leave it out to score all of them again.",
        )
    identity = {key: value for key, value in (info.get("identity") or {}).items() if key != "extract"}
    store.note(extract=rule, identity=identity | answers.extraction_identity(rule, chat))

"""``spsbench run field``: one run a task in one folder, and the row that papers print of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import (
    DeviceFault,
    GateFailed,
    IncompleteError,
    SpsbenchError,
    UsageError,
    identity,
    label,
    make_folder,
    results_dir,
    write_text,
)
from spsbench.cli import (
    RunOptions,
    continued_by,
    gates_of,
    load_in_runs,
    read_settings,
    require_judgeable,
    require_possible,
    say,
    say_if_busy,
    written,
)
from spsbench.config import refuse_together
from spsbench.parts.paper import messages
from spsbench.parts.paper.folder import Page, linked_run, markdown, measured_run, require_empty, write_page
from spsbench.stats import disturbance, gate_failures, mean_length
from spsbench.store import fresh_directory
from spsbench.tasks import FIELD, FIELD_TASKS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.base import Message
    from spsbench.config import RunConfig
    from spsbench.report import Measured
    from spsbench.runner import Plan

PAGE_FILE = "field.md"
SCHEMA_VERSION = 1


def measure_field(options: RunOptions) -> None:
    """Measure every task of the field that is missing, and show the row of all.

    What fails, a task without its data, say, is left out with its reason and tried again on the next call; it
    loses nothing of the others.

    Raises:
        GateFailed: a measured task does not pass a gate of ``--fail-on``.
        IncompleteError: a task is missing, or some of its sequences.
    """
    refuse_together(FIELD, {**vars(options), FIELD: FIELD})
    if options.task not in (None, FIELD):
        why = f"{options.task} is given, and {options.resume or options.out} holds several tasks."
        raise UsageError(why, flag="TASK", remedy="Leave it out, or name another directory.")
    before = options.resume or options.out
    gates = gates_of(options.fail_on, scores=not options.no_score)
    configs = _configs(options, before)
    again = any(config.remeasure_s != 0 for config in configs.values())
    say_if_busy(load_in_runs(remeasured=again), quiet=options.quiet)
    say(messages.CHECKING, quiet=options.quiet)
    plans, failures = _plans(configs, gates, options)
    directory = before or fresh_directory(results_dir(), FIELD, next(iter(configs.values())).pair.name)
    make_folder(directory / FIELD, "--out")
    for task, config in configs.items():
        write_text(directory / FIELD / f"{task}.yaml", config.to_yaml())
    unsafe = any(config.unsafe_exec for config in configs.values())
    continued_by(lambda: _resume_command(directory, unsafe=unsafe))
    for task, why in failures.items():
        say(str(messages.TaskLeftOut(task, why)), quiet=options.quiet)
    measured: dict[str, Measured] = {}
    for number, (task, ready) in enumerate(plans.items(), start=1):
        say(f"{task} ({number} of {len(plans)})", quiet=options.quiet)
        try:
            measured[task] = measured_run(
                ready, directory / task, quiet=options.quiet, allow_mixed=options.allow_mixed
            )
        except DeviceFault:
            raise
        except SpsbenchError as error:
            failures[task] = str(error)
            say(str(messages.TaskLeftOut(task, str(error))), quiet=options.quiet)
    if not measured:
        raise IncompleteError(
            f"no task could be measured; {next(iter(failures))}: {next(iter(failures.values()))}"
        )
    page = gather(measured, failures)
    write_page(directory / PAGE_FILE, page, render(page), screen(page), options)
    _require_passed(measured, plans, gates)
    if not page["complete"]:
        short = [*failures, *(part["task"] for part in page["tasks"] if not part["complete"])]
        remedy = f"`{_resume_command(directory, unsafe=unsafe)}` tries again."
        raise IncompleteError(f"not measured in full: {', '.join(short)}.", remedy=remedy)


def _require_passed(
    measured: Mapping[str, Measured], plans: Mapping[str, Plan], gates: Sequence[str]
) -> None:
    failed = [
        f"{task}, {gate}: {reason}"
        for task, run in measured.items()
        for gate in _gates_of_task(gates, plans[task].task.headline)
        if gate != "incomplete"  # told after it, with what is missing
        for reason in gate_failures(run.summary, gate)
    ]
    if failed:
        raise GateFailed(f"{'; '.join(failed)}.", flag="--fail-on")


def _resume_command(directory: Path, *, unsafe: bool) -> str:
    return written("run", "--resume", str(directory), *(("--unsafe-exec",) if unsafe else ()))


def _configs(options: RunOptions, before: Path | None) -> dict[str, RunConfig]:
    """The settings of each task: greedy unless a sampling is named, as papers quote acceptance,
    and without scores and proof where neither the row nor a gate needs them; a begun folder's own
    settings, with what was typed on top.
    """
    kept = sorted((before / FIELD).glob("*.yaml")) if before is not None else []
    of_field = replace(options, resume=None, out=None)
    if kept:
        typed = replace(of_field, task=None)
        configs = {path.stem: read_settings(typed, settings=path) for path in kept}
        return {task: configs[task] for task in sorted(configs, key=_place_in_row)}
    if options.resume is not None:
        raise UsageError(f"{before} holds no field.", flag="--resume", remedy="Begin one with --out.")
    if before is not None:
        require_empty(before, "--out", "field")
    gates = gates_of(options.fail_on)
    of_field = replace(
        of_field,
        sampling=of_field.sampling or "greedy",
        no_score=of_field.no_score or "parity" not in gates,
        no_proof=of_field.no_proof or "lossless" not in gates,
    )
    return {task: read_settings(replace(of_field, task=task)) for task in FIELD_TASKS}


def _place_in_row(task: str) -> tuple[int, str]:
    """As a key; one that is none of the field's stands at the end."""
    return (FIELD_TASKS.index(task) if task in FIELD_TASKS else len(FIELD_TASKS)), task


def _plans(
    configs: Mapping[str, RunConfig], gates: Sequence[str], options: RunOptions
) -> tuple[dict[str, Plan], dict[str, str]]:
    """(what can be measured, why the rest cannot); the first error itself if nothing can, and the one of a
    task that cannot go on with these settings: they are kept for the next call."""
    from spsbench.models import require_located

    for config in configs.values():
        require_located(config.pair)
    from spsbench.runner import plan, require_continuable

    plans = dict[str, Any]()
    failures = dict[str, SpsbenchError]()
    for task, config in configs.items():
        try:
            known = require_possible(config, is_k_given=options.k is not None)
            require_judgeable(known, _gates_of_task(gates, known[0].headline))
            plans[task] = plan(config, known, choose_engine=True, later_turns=True)
        except SpsbenchError as error:
            failures[task] = error
    if not plans:
        raise next(iter(failures.values()))
    if before := options.resume or options.out:
        for task, ready in plans.items():
            require_continuable(ready, before / task, allow_mixed=options.allow_mixed)
    if "parity" in gates and (unscored := [task for task in plans if plans[task].task.headline is None]):
        say(str(messages.TasksUnscored(unscored)), quiet=options.quiet)
    return plans, {task: str(error) for task, error in failures.items()}


def _gates_of_task(gates: Sequence[str], headline: str | None) -> list[str]:
    """By its headline metric; without any metric it has no parity."""
    return [gate for gate in gates if gate != "parity" or headline is not None]


def gather(measured: Mapping[str, Measured], failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the page: each task's own results, and each speculative arm's row over tasks.

    A mean is over the tasks that were measured, each with the same weight, as papers print it.
    """
    from spsbench.report import facts, wording

    tasks = []
    rows = dict[tuple[str, str], dict[str, Any]]()
    for task, run in measured.items():
        summary = run.summary
        tasks.append(
            {
                "task": task,
                "label": wording.title(summary),
                "prompts": facts.prompts(summary),
                "complete": summary["complete"],
                "undecided": [str(contention)] if (contention := disturbance(summary)) else [],
                "notes": facts.doubts(summary),
            }
        )
        for arm in summary["rows"]:
            if arm["method"] != "sps":
                continue
            loops = run.loops[run.loops["arm"] == arm["arm"]]
            length = mean_length(loops) if arm["acceptance"] else None
            row = rows.setdefault(
                (label(arm), arm["sampling"]), {"label": label(arm), **identity(arm), "tasks": {}}
            )
            row["tasks"][task] = {
                "mean_acceptance_length": None if length is None else asdict(length),
                "tokens_per_loop": arm["tokens_per_loop"],
                "speedup": arm["speedup"],
            }
    for row in rows.values():
        cells = row["tasks"].values()
        row["mean"] = {
            "mean_acceptance_length": _mean(_estimate(cell["mean_acceptance_length"]) for cell in cells),
            "tokens_per_loop": _mean(cell["tokens_per_loop"] for cell in cells),
            "speedup": _mean(_estimate(cell["speedup"]) for cell in cells),
        }
    summaries = [run.summary for run in measured.values()]
    return {
        "schema_version": SCHEMA_VERSION,
        "pair": summaries[0].get("pair"),
        "synthetic": any(summary.get("synthetic") for summary in summaries),
        "complete": not failures and all(summary["complete"] for summary in summaries),
        "tasks": tasks,
        "missing": [{"task": task, "why": why} for task, why in failures.items()],
        "rows": list(rows.values()),
    }


def _estimate(value: Mapping[str, Any] | None) -> float | None:
    return None if value is None else value.get("estimate", value.get("ratio"))


def _mean(values: Iterable[float | None]) -> float | None:
    """None where a value is missing, since a mean over fewer tasks is another quantity."""
    known = list(values)
    there = [value for value in known if value is not None]
    return sum(there) / len(there) if there and len(there) == len(known) else None


_SHOWN = (("mean_acceptance_length", "{:.2f}"), ("tokens_per_loop", "{:.2f}"), ("speedup", "{:.2f}x"))


def _tasks_in_order(page: Page) -> list[str]:
    """Those that are missing too."""
    return sorted([part["task"] for part in (*page["tasks"], *page["missing"])], key=_place_in_row)


def _title(page: Page) -> str:
    synthetic = " (synthetic)" if page["synthetic"] else ""
    return f"Acceptance and speedup by task, pair {page['pair']}{synthetic}"


def _row_table(page: Page) -> Any:
    from spsbench.report import NOTHING, Heading, Table, left, right

    tasks = _tasks_in_order(page)
    unsure = {part["task"] for part in page["tasks"] if part["undecided"]}
    columns = [left("", whole=True), *(right(task) for task in tasks), right("mean")]
    rows: list[Any] = []
    for row in page["rows"]:
        rows.append(Heading(f"{row['label']}, {row['sampling']}"))
        for name, form in _SHOWN:
            cells = [name]
            for task in tasks:
                value = row["tasks"].get(task, {}).get(name)
                value = _estimate(value) if isinstance(value, Mapping) else value
                mark = "?" if name == "speedup" and task in unsure else ""
                cells.append(NOTHING if value is None else form.format(value) + mark)
            mean = row["mean"][name]
            mark = "?" if name == "speedup" and unsure else ""
            rows.append([*cells, NOTHING if mean is None else form.format(mean) + mark])
    return Table(columns, rows)


def _task_table(page: Page) -> Any:
    from spsbench.report import Heading, entry, estimate, left, number, right, speedup, table_of

    columns = [
        left("task", entry("label")),
        right("prompts", entry("prompts")),
        right("mean_acceptance_length", entry("mean_acceptance_length", estimate), note="95%"),
        right("tokens/loop", entry("tokens_per_loop", number, 2)),
        right("speedup", entry("speedup", speedup), note="95%"),
    ]
    rows: list[Any] = []
    for row in page["rows"]:
        rows.append(Heading(f"{row['label']}, {row['sampling']}"))
        for part in page["tasks"]:
            if cell := row["tasks"].get(part["task"]):
                rows.append({"label": part["label"], "prompts": str(part["prompts"]), **cell})
    return table_of(columns, rows)


def _notes_under_row(page: Page) -> list[str]:
    notes: list[Message] = [messages.TaskLeftOut(part["task"], part["why"]) for part in page["missing"]]
    if undecided := [part["task"] for part in page["tasks"] if part["undecided"]]:
        notes.append(messages.TasksUndecided(undecided))
    return [*map(str, notes), messages.FIELD_LEGEND]


def screen(page: Page) -> RenderableType:
    """The row for the terminal."""
    from rich.console import Group
    from rich.text import Text

    from spsbench.report import wording

    lines = [*_notes_under_row(page), *([wording.SYNTHETIC] if page["synthetic"] else [])]
    texts = [part for line in lines for part in (Text(wording.printable(line)), Text())]
    return Group(
        Text(), Text(_title(page), style="bold"), Text(), _row_table(page).as_rich(gap=1), Text(), *texts
    )


def render(page: Page) -> str:
    """The page as GitHub renders it: the row, the table with intervals, the runs with their doubts."""
    from spsbench.report import escape

    parts = [_row_table(page), *map(escape, _notes_under_row(page)), "## By task", _task_table(page)]
    runs = (
        linked_run(part["task"], part["task"], part["label"], part["prompts"], part["notes"])
        for part in page["tasks"]
    )
    return markdown(page, _title(page), parts, runs)

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
    write_json,
    write_text,
)
from spsbench.cli import (
    RunOptions,
    continued_by,
    derive,
    gates_of,
    load_in_runs,
    present,
    read_settings,
    require_judgeable,
    require_possible,
    say,
    say_if_busy,
    watching,
    written,
)
from spsbench.config import refuse_together
from spsbench.stats import disturbance, gate_failures, mean_length
from spsbench.store import fresh_directory
from spsbench.tasks import FIELD, FIELD_TASKS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.config import RunConfig
    from spsbench.report import Measured
    from spsbench.runner import Plan

SUMMARY_FILE, PAGE_FILE = "field.json", "field.md"
SCHEMA_VERSION = 1

Page = Mapping[str, Any]


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
    say("Checking tasks, data and models", quiet=options.quiet)
    plans, failures = _plans(configs, gates, options)
    directory = before or fresh_directory(results_dir(), FIELD, next(iter(configs.values())).pair.name)
    make_folder(directory / FIELD, "--out")
    for task, config in configs.items():
        write_text(directory / FIELD / f"{task}.yaml", config.to_yaml())
    unsafe = any(config.unsafe_exec for config in configs.values())
    continued_by(lambda: _resume(directory, unsafe=unsafe))
    for task, why in failures.items():
        say(f"{task} is left out: {why}", quiet=options.quiet)
    measured: dict[str, Measured] = {}
    for number, (task, ready) in enumerate(plans.items(), start=1):
        say(f"{task} ({number} of {len(plans)})", quiet=options.quiet)
        try:
            measured[task] = _measure(ready, directory / task, options)
        except DeviceFault:
            raise
        except SpsbenchError as error:
            failures[task] = str(error)
            say(f"{task} failed: {error}", quiet=options.quiet)
    if not measured:
        raise IncompleteError(
            f"no task could be measured; {next(iter(failures))}: {next(iter(failures.values()))}"
        )
    page = gather(measured, failures)
    write_json(directory / SUMMARY_FILE, page)
    write_text(directory / PAGE_FILE, render(page))
    present(lambda: page, lambda: screen(page), json=options.json, quiet=options.quiet)
    say(f"Everything is in {directory / PAGE_FILE}", quiet=options.quiet)
    _judge(measured, plans, gates)
    if not page["complete"]:
        short = [*failures, *(part["task"] for part in page["tasks"] if not part["complete"])]
        remedy = f"`{_resume(directory, unsafe=unsafe)}` tries again."
        raise IncompleteError(f"not measured in full: {', '.join(short)}.", remedy=remedy)


def _judge(measured: Mapping[str, Measured], plans: Mapping[str, Plan], gates: Sequence[str]) -> None:
    """Raise ``GateFailed`` for the tasks that do not pass their gates."""
    failed = [
        f"{task}, {gate}: {reason}"
        for task, run in measured.items()
        for gate in _gates(gates, plans[task].task.headline)
        if gate != "incomplete"  # told after it, with what is missing
        for reason in gate_failures(run.summary, gate)
    ]
    if failed:
        raise GateFailed(f"{'; '.join(failed)}.", flag="--fail-on")


def _resume(directory: Path, *, unsafe: bool) -> str:
    return written("run", "--resume", str(directory), *(("--unsafe-exec",) if unsafe else ()))


def _configs(options: RunOptions, before: Path | None) -> dict[str, RunConfig]:
    """Return the settings of each task: greedy unless a sampling is named, as papers quote acceptance,
    and without scores and proof where neither the row nor a gate needs them; a begun folder's own
    settings, with what was typed on top.
    """
    kept = sorted((before / FIELD).glob("*.yaml")) if before is not None else []
    of_field = replace(options, resume=None, out=None)
    if kept:
        typed = replace(of_field, task=None)
        configs = {path.stem: read_settings(typed, settings=path) for path in kept}
        return {task: configs[task] for task in sorted(configs, key=_place)}
    if options.resume is not None:
        raise UsageError(f"{before} holds no field.", flag="--resume", remedy="Begin one with --out.")
    if before is not None and before.is_dir() and any(before.iterdir()):
        remedy = "Name a directory that is empty or does not exist."
        raise UsageError(f"{before} is not empty and holds no field.", flag="--out", remedy=remedy)
    gates = gates_of(options.fail_on)
    of_field = replace(
        of_field,
        sampling=of_field.sampling or "greedy",
        no_score=of_field.no_score or "parity" not in gates,
        no_proof=of_field.no_proof or "lossless" not in gates,
    )
    return {task: read_settings(replace(of_field, task=task)) for task in FIELD_TASKS}


def _place(task: str) -> tuple[int, str]:
    """Return where a task stands in the row; one that is none of the field's stands at the end."""
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
            require_judgeable(known, _gates(gates, known[0].headline))
            plans[task] = plan(config, known, choose_engine=True, later_turns=True)
        except SpsbenchError as error:
            failures[task] = error
    if not plans:
        raise next(iter(failures.values()))
    if before := options.resume or options.out:
        for task, ready in plans.items():
            require_continuable(ready, before / task, allow_mixed=options.allow_mixed)
    if "parity" in gates and (unscored := [task for task in plans if plans[task].task.headline is None]):
        say(f"No parity of {', '.join(unscored)}: nothing scores it", quiet=options.quiet)
    return plans, {task: str(error) for task, error in failures.items()}


def _gates(gates: Sequence[str], headline: str | None) -> list[str]:
    """Return the gates for a task with this headline metric; without any metric it has no parity."""
    return [gate for gate in gates if gate != "parity" or headline is not None]


def _measure(ready: Plan, directory: Path, options: RunOptions) -> Measured:
    from spsbench.runner import execute

    with watching(quiet=options.quiet) as watcher:
        execute(ready, directory, resume=True, watcher=watcher, allow_mixed=options.allow_mixed)
    measured, _ = derive(directory)
    return measured


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
                "undecided": disturbance(summary),
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
    """Return the mean; None where a value is missing, since a mean over fewer tasks is another quantity."""
    known = list(values)
    there = [value for value in known if value is not None]
    return sum(there) / len(there) if there and len(there) == len(known) else None


_SHOWN = (("mean_acceptance_length", "{:.2f}"), ("tokens_per_loop", "{:.2f}"), ("speedup", "{:.2f}x"))


def _names(page: Page) -> list[str]:
    """Return measured and missing tasks in the row's order."""
    return sorted([part["task"] for part in (*page["tasks"], *page["missing"])], key=_place)


def _title(page: Page) -> str:
    synthetic = " (synthetic)" if page["synthetic"] else ""
    return f"Acceptance and speedup by task, pair {page['pair']}{synthetic}"


def _row_table(page: Page) -> Any:
    """Return the papers' row: a column a task, and the mean."""
    from spsbench.report import NOTHING, Heading, Table, left, right

    names = _names(page)
    unsure = {part["task"] for part in page["tasks"] if part["undecided"]}
    columns = [left("", whole=True), *(right(name) for name in names), right("mean")]
    rows: list[Any] = []
    for row in page["rows"]:
        rows.append(Heading(f"{row['label']}, {row['sampling']}"))
        for name, form in _SHOWN:
            cells = [name]
            for task in names:
                value = row["tasks"].get(task, {}).get(name)
                value = _estimate(value) if isinstance(value, Mapping) else value
                mark = "?" if name == "speedup" and task in unsure else ""
                cells.append(NOTHING if value is None else form.format(value) + mark)
            mean = row["mean"][name]
            mark = "?" if name == "speedup" and unsure else ""
            rows.append([*cells, NOTHING if mean is None else form.format(mean) + mark])
    return Table(columns, rows)


def _task_table(page: Page) -> Any:
    """Return the same by task, with intervals over its prompts."""
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


_LEGEND = (
    "mean_acceptance_length: 1 + accepted tokens a loop, which papers call acceptance length or tau; "
    "tokens_per_loop: of the outputs, after EOS and stop strings have cut them. The mean gives every "
    "measured task the same weight."
)


def _notes(page: Page) -> list[str]:
    """Return what must stand under the row: missing tasks and why, and times that decide nothing."""
    notes = [f"{part['task']} is missing: {part['why']}" for part in page["missing"]]
    if unsure := [part["task"] for part in page["tasks"] if part["undecided"]]:
        notes.append(
            f"?: contention took part of the time measured, so look at the run: {', '.join(unsure)}."
        )
    return notes


def screen(page: Page) -> RenderableType:
    """The row for the terminal."""
    from rich.console import Group
    from rich.text import Text

    from spsbench.report import wording

    lines = [*_notes(page), _LEGEND, *([wording.SYNTHETIC] if page["synthetic"] else [])]
    texts = [part for line in lines for part in (Text(wording.printable(line)), Text())]
    return Group(
        Text(), Text(_title(page), style="bold"), Text(), _row_table(page).as_rich(gap=1), Text(), *texts
    )


def render(page: Page) -> str:
    """The page as GitHub renders it: the row, the table with intervals, the runs with their doubts."""
    from spsbench.report import escape, paragraphs, wording

    runs = []
    for part in page["tasks"]:
        about = f"{escape(part['label'])}, {wording.counted(part['prompts'], 'prompt')}"
        runs.append(f"* [{escape(part['task'])}]({part['task']}/report.md): {about}")
        runs += [f"  * {escape(text)}" for text in part["notes"]]
    parts = [f"# {escape(_title(page))}", _row_table(page), *map(escape, _notes(page)), escape(_LEGEND)]
    more = ["## By task", _task_table(page), "## The runs", runs]
    return "\n".join(paragraphs(*parts, *more, wording.SYNTHETIC if page["synthetic"] else "")) + "\n"

"""Find a task by name, path, entry point or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spsbench.base.errors import UsageError
from spsbench.base.paths import data_dir
from spsbench.base.plugins import Registry
from spsbench.config.models import Turns
from spsbench.config.trust import TASK_ENDINGS
from spsbench.tasks.answers import ExtractionChoice
from spsbench.tasks.humaneval import Code
from spsbench.tasks.kind import PythonTask, TaskKind
from spsbench.tasks.mbpp import Mbpp
from spsbench.tasks.metrics.registry import metric_kinds
from spsbench.tasks.prompts import ENDINGS, PromptsTask, is_prompts_file, read_prompts_file
from spsbench.tasks.sources import unknown_ending
from spsbench.tasks.spec import PROGRAMS, TaskSpec, read_spec
from spsbench.tasks.task import Task
from spsbench.tasks.text import TextTask
from spsbench.tasks.turns import TurnsTask
from spsbench.tasks.xsum import Summarization

TASKS = Registry(TaskKind, "spsbench.tasks", "TASK")
"""Those of other packages and files; ours are YAML."""


def list_tasks() -> list[TaskSpec]:
    return [read_spec(path) for _, path in sorted(_shipped().items())]


def task_kind(name: str) -> TaskKind:
    """Return the task of another package or file; see ``Registry.find`` for the errors."""
    return TASKS.find(name, known=sorted(_shipped()))


def load_task(
    name: str,
    *,
    unsafe_exec: bool = False,
    extract: ExtractionChoice = "auto",
    turns: Turns = "last",
    **judging: Any,
) -> Task:
    """Load a task by name, from another package, a YAML file, ``file.py:attribute`` or a prompts file.

    A YAML file ends in .yaml or .yml; see ``spsbench.tasks.prompts``.
    """
    path = Path(name) if name.endswith(TASK_ENDINGS) else _shipped().get(name)
    if path is None and not is_prompts_file(name) and (Path(name).is_dir() or Path(name).is_file()):
        raise _unread_file(name)
    task: Task
    if is_prompts_file(name):
        every, own = turns == "all", turns in ("own", "first")
        content = read_prompts_file(Path(name), every_turn=every, own_answers=own)
        task = PromptsTask(content.of_first_turns() if turns == "first" else content, Path(name))
    elif path is not None:
        task = _from_yaml(path, unsafe_exec, extract, judging)
    else:
        kind = task_kind(name)
        if not kind.samplings:
            remedy = "Give it at least one."
            raise UsageError(f"the task {kind.name} has no sampling.", flag="TASK", remedy=remedy)
        task = PythonTask(kind, metric_kinds(kind.metrics, f"the metrics of {kind.name}"))
    if extract == "fence" and not task.runs_code:
        remedy = "Give auto or none."
        raise UsageError(f"the answers of {task.name} contain no code.", flag="--extract", remedy=remedy)
    return task


def _unread_file(name: str) -> UsageError:
    """A directory, or a file whose ending is of no prompts, no data and no task."""
    path = Path(name)
    if path.is_dir():
        is_run = (path / "run.json").is_file()
        why = f"{name} is {'the directory of a run' if is_run else 'a directory'}, and not a task."
        remedy = f"Type `spsbench report {name}`." if is_run else "Name a file of prompts in it, or a task."
        return UsageError(why, flag="TASK", remedy=remedy)
    if path.suffix == ".py":
        remedy = f"Name what it defines: {path}:ATTRIBUTE."
        return UsageError(f"{path} is a file of Python.", flag="TASK", remedy=remedy)
    endings = f"Prompts and data end in {', '.join((*ENDINGS, '.csv'))}, a task in .yaml."
    return unknown_ending(path, "TASK", endings)


def _from_yaml(path: Path, unsafe_exec: bool, extract: ExtractionChoice, judging: dict[str, Any]) -> Task:
    spec = read_spec(path)
    kinds = metric_kinds(spec.metric_names, f"{path}: metrics", path.parent)
    known = [*(PROGRAMS if spec.kind == "code" else ()), *(kind.name for kind in kinds)]
    if spec.headline is not None and spec.headline not in known:
        why = f"headline is {spec.headline}, not one of {', '.join(known)}."
        raise UsageError(why, flag=f"{path}: headline", remedy="Name one of the task's metrics.")
    if spec.kind == "code":
        code = Mbpp if spec.prompt == "mbpp" else Code
        return code(spec, kinds, unsafe_exec=unsafe_exec, extract=extract, **judging)
    return {"text": TextTask, "turns": TurnsTask}.get(spec.kind, Summarization)(spec, kinds)


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in data_dir("tasks").glob("*.yaml")}

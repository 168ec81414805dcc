"""Find a task by name or path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spsbench.config.files import unknown_name
from spsbench.errors import UsageError
from spsbench.paths import data_dir
from spsbench.tasks.answers import ExtractionChoice
from spsbench.tasks.humaneval import Code
from spsbench.tasks.spec import TaskSpec, read_spec
from spsbench.tasks.task import Task
from spsbench.tasks.xsum import Summarization


def list_tasks() -> list[TaskSpec]:
    """The tasks that come with the package, by name."""
    return [read_spec(path) for _, path in sorted(_shipped().items())]


def load_task(
    name_or_path: str, *, unsafe_exec: bool = False, extract: ExtractionChoice = "auto", **judging: Any
) -> Task:
    """A task by name, or from a YAML file of the user's (a path ending in .yaml or .yml).

    Args:
        name_or_path: which.
        unsafe_exec: score programs even where no sandbox holds.
        extract: how code is taken from an answer, see ``spsbench.tasks.answers``.
        judging: ``judge_timeout_s`` and ``judge_workers``, for a task that runs programs.

    Raises:
        UsageError: an unknown name (with the closest known one), a file that is no task, or code to be
            taken from the answers of a task without code.
    """
    spec = read_spec(_find(name_or_path))
    if spec.kind == "code":
        return Code(spec, unsafe_exec=unsafe_exec, extract=extract, **judging)
    if extract == "fence":
        raise UsageError(
            f"the answers of {spec.name} hold no code.", flag="--extract", remedy="Give auto or none."
        )
    return Summarization(spec)


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    shipped = _shipped()
    if name_or_path not in shipped:
        raise unknown_name("task", name_or_path, shipped, "TASK")
    return shipped[name_or_path]


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in data_dir("tasks").glob("*.yaml")}

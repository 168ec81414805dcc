"""Settings as ``run`` and what measures like it take them: from options, a file, a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.axes import CHAIN
from spsbench.base.environment import require_cpus
from spsbench.base.errors import SpsbenchError, UsageError, as_typed
from spsbench.base.files import read_json
from spsbench.base.plugins import unknown
from spsbench.cli.console import prose, say
from spsbench.cli.options import Common, RunOptions, among
from spsbench.config import MaterialSettings, RunConfig, resolve
from spsbench.config.resolution import typed_settings
from spsbench.config.together import refuse_together
from spsbench.config.trust import admit

if TYPE_CHECKING:
    from spsbench.engines.arms import TaskAndArms
    from spsbench.tasks.task import Task


def read_settings(asked: RunOptions, *, settings: Path | None = None) -> RunConfig:
    """Return the configuration that options of ``run`` ask for, on top of ``settings``, if given.

    ``settings`` is the file kept of a run that had not begun.
    """
    before: dict[str, str] = {}
    if asked.resume is not None:
        run, settings = asked.resume / "run.json", asked.resume / "config.yaml"
        if not run.is_file():
            remedy = "Name the directory of a run, or begin a new one there with --out."
            raise UsageError(f"{asked.resume} is not a run directory.", flag="--resume", remedy=remedy)
        before = _extraction_before(run)
    flags = _typed_settings(vars(asked))
    if "data" not in flags:
        flags |= task_file(flags.get("task"), quiet=asked.quiet)
    overrides = asked.set or ()
    config = resolve(before | flags, settings or asked.config, overrides, of_run=asked.resume is not None)
    # Settings, from whatever source, against options that are none.
    beside = {"expect": asked.expect, "on": asked.on, "processes": asked.processes}
    split = config.ranks if config.ranks > 1 else None
    refuse_together("run", beside | {"tensor_parallel": split, "until": config.until})
    folder = settings.parent if settings is not None else _run_directory_of(asked.config)
    typed = [*flags, *(text.partition("=")[0] for text in overrides)]
    admit(config, folder, typed, trust=asked.trust)
    if asked.on is None:
        require_cpus(config.threads)
    return config


def _typed_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """With what each ``NAME=VALUE`` of them says."""
    flags = typed_settings(options)
    if options.get("tag"):
        flags["tag"] = dict(_name_and_value(text, "--tag", "gpu=a") for text in options["tag"])
    if options.get("template_arg"):
        flags["template_arg"] = template_args(options["template_arg"])
    return flags


def _run_directory_of(settings: Path | None) -> Path | None:
    """None for settings that a user wrote."""
    inside = settings is not None and (settings.parent / "run.json").is_file()
    return settings.parent if settings is not None and inside else None


@dataclass(frozen=True, kw_only=True)
class _MaterialOptions(Common):
    task: str | None = None
    data: str | None = None
    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    limit: str | None = None
    max_new_tokens: str | None = None
    seed: str | None = None
    device: str | None = None
    template_arg: list[str] | None = None


def read_material(options: Common = Common(), /, **fixed: object) -> MaterialSettings:
    """Read which prompts and models options ask for; refuse those that are not there.

    ``fixed`` overrules what was typed.
    """
    from spsbench.tasks.catalogue import load_task

    typed = among(_MaterialOptions, options, **fixed)
    flags = _typed_settings(vars(typed))
    if typed.data is None:
        flags |= task_file(typed.task, quiet=typed.quiet)
    config = resolve(flags, target_alone=True)
    admit(config)
    settings = MaterialSettings.of(config)
    asked = load_task(settings.task, turns=settings.turns)
    say_reading(asked, quiet=typed.quiet)
    require_material(config, asked)
    return settings


@contextmanager
def _of_flag(typed: str, flag: str, remedy: str | None = None) -> Iterator[None]:
    """Raise the block's errors about ``flag`` again as those of the option that was typed.

    Args:
        remedy: in place of none, or of one that speaks of ``flag``.
    """
    try:
        yield
    except SpsbenchError as error:
        if not (error.flag or "").startswith(flag):
            raise
        own = error.remedy
        if remedy is None or (own is not None and flag not in own):
            remedy = own
        raise type(error)(error.message, flag=typed, remedy=remedy) from error


def task_named_by(flag: str) -> AbstractContextManager[None]:
    """Raise the block's errors about TASK again as those of the option that names the task."""
    return _of_flag(flag, "TASK")


def data_by_task() -> AbstractContextManager[None]:
    """Raise the block's errors about ``--data`` again as those of ``--task``, of a command without it."""
    remedy = (
        "Give prompts of your own with --task FILE, point HF_HOME to a cache that holds the data, or go "
        "online (with HF_TOKEN if access is gated)."
    )
    return _of_flag("--task", "--data", remedy)


def say_reading(task: Task, *, quiet: bool) -> None:
    """Print what of a file is left out or not used."""
    from spsbench.report.facts import reading_notes

    for text in reading_notes(task.reading):
        say(prose(text), quiet=quiet)


def task_file(task: str | None, *, quiet: bool) -> dict[str, str]:
    """Return what a file given as TASK stands for: prompts, or a task with the file as its data."""
    from spsbench.tasks.prompts import layout_of

    if (layout := layout_of(task)) is None:
        return {}
    say(layout, quiet=quiet)
    return {} if layout.task is None else {"task": layout.task, "data": layout.path}


def template_args(typed: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Return variables of a chat template: true, false and numbers as such, all else as text."""
    pairs = dict(_name_and_value(text, "--template-arg", "enable_thinking=false") for text in typed)
    return {name: _scalar(value) for name, value in pairs.items()}


def _scalar(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if isfinite(number) else text
    return text


def _name_and_value(text: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        remedy = f"For example: {flag} {example}."
        raise UsageError(f"it must be key=value, got {as_typed(text)}.", flag=flag, remedy=remedy)
    return name, value


def _extraction_before(run: Path) -> dict[str, str]:
    """What ``extract: auto`` stood for in a chat that was left to answer freely."""
    record = read_json(run, "--resume")
    rule = record.get("extract") or ("fence" if record.get("headline_metric") == "pass@1" else None)
    chat = (record.get("identity") or {}).get("chat_template") is True
    return {"extract": "fence"} if chat and rule == "fence" else {}


def gates_of(text: str | None, *, scores: bool = True) -> list[str]:
    """Return the gates that ``--fail-on`` names, of a run that ``scores`` its outputs or does not."""
    from spsbench.stats.conditions import GATES

    named = [part.strip() for part in (text or "incomplete").split(",")]
    for gate in named:
        if gate not in GATES:
            raise unknown(gate, GATES, "--fail-on")
    if "parity" in named and not scores:
        why = "parity compares scores, and --no-score computes none."
        raise UsageError(why, flag="--fail-on", remedy="Leave one of the two out.")
    return named


def require_possible(
    config: RunConfig, *, is_k_given: bool = False, typed: RunOptions | None = None
) -> TaskAndArms:
    """Refuse what the settings alone show to be impossible, without importing torch; return task and arms.

    The task and the arms that were looked at are the result, for ``plan``.

    Args:
        typed: what was typed for this task alone, so that each option has to mean something for it.
    """
    from spsbench.drafters.registry import shape_in
    from spsbench.engines.arms import task_and_arms

    task, arms = task_and_arms(config)
    if typed is not None:
        _require_effect(typed, task)
    depths = {arm.k for arm in arms if arm.method == "sps" and shape_in(arm.drafter)}
    idle = sorted({*config.ks} - {0, *(arm.k for arm in arms)})
    if is_k_given and depths and idle:
        raise UsageError(
            f"no loop drafts {', '.join(map(str, idle))} tokens: a static tree has its own depth.",
            flag="--k",
            remedy=f"Give --k {','.join(map(str, sorted(depths)))}, or add {CHAIN} or dynamic:N to --tree.",
        )
    return task, arms


def require_material(config: RunConfig, task: Task) -> None:
    """Refuse models and data that are not there, without importing torch.

    Official data are not fetched for it, and a task in Python, which may take its time, is not asked twice.
    """
    from spsbench.models.location import require_located
    from spsbench.tasks.kind import PythonTask
    from spsbench.tasks.reading import read_data

    require_located(config.pair)
    if config.data != "official" and not isinstance(task, PythonTask):
        read_data(task, MaterialSettings.of(config))


def _require_effect(typed: RunOptions, task: Task) -> None:
    overridden = {text.partition("=")[0].strip() for text in typed.set or ()}
    for name, value, means, what in (
        ("turns", typed.turns, task.has_turns, "have no turns"),
        ("extract", typed.extract, task.runs_code, "are not answered by code"),
    ):
        if not means and (value is not None or name in overridden):
            flag = f"--{name}" if value is not None else f"--set {name}"
            raise UsageError(
                f"it has no effect: the prompts of {task.name} {what}.", flag=flag, remedy="Leave it out."
            )


def require_judgeable(known: TaskAndArms, gates: Sequence[str]) -> None:
    """Refuse a gate that this task and these arms cannot pass, or that has nothing to judge."""
    from spsbench.engines.arms import is_lossless

    task, arms = known
    lossy = sorted({arm.rule.name for arm in arms if arm.method == "sps" and not is_lossless(arm)})
    if lossy and "lossless" in gates:
        why = f"{', '.join(lossy)} is lossy by design and cannot pass the gate lossless."
        raise UsageError(why, flag="--fail-on", remedy="Leave the gate or the rule out.")
    if "parity" not in gates:
        return
    if task.headline is None:
        why = f"parity compares scores, and nothing scores {task.name}."
        raise UsageError(why, flag="--fail-on", remedy="Leave the gate parity out.")
    if {"ars", "sps"} - {arm.method for arm in arms}:
        why = "parity compares SpS with ArS, and not both are run."
        raise UsageError(why, flag="--fail-on", remedy="Run both, or leave the gate out.")

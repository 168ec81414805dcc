"""What the papers have in common: parts that are runs, options that are kept, one directory for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import present, say
from spsbench.cli.interruption import continued_by, written
from spsbench.errors import IncompleteError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report.measured import Measured
    from spsbench.runner import Plan

OPTIONS_FILE, SUMMARY_FILE, PAGE_FILE = "options.json", "paper.json", "paper.md"
SCHEMA_VERSION = 1
ALL = "all"

OF_EVERY_RUN = ("data", "seed", "device", "dtype", "threads", "backend")
OF_BOTH = ("pair", "limit", *OF_EVERY_RUN)
OF_CHEN = ("samples", "no_score", "unsafe_exec", "extract")
OF_LEVIATHAN = ("target", "draft", "task")
"""Options of each paper by their names in Python; nothing is scored for Leviathan's tables."""

_NUMBERS = ("limit", "samples", "seed", "threads")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of the paper.

    Attributes:
        settings: fields of ``RunConfig``.
    """

    name: str
    title: str
    settings: Mapping[str, Any]


def options_of(params: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What was typed of ``names``; in a directory of before also what was typed the first time."""
    resume: Path | None = params["resume"]
    if resume is not None and params["out"] is not None:
        raise UsageError(
            f"{params['out']} is given together with --resume.",
            flag="--out",
            remedy="Leave one of the two out.",
        )
    options = {name: _number(name, params[name]) for name in names}
    before = options_before(params)
    return {name: typed if _is_given(typed) else before.get(name) for name, typed in options.items()}


def options_before(params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that ``--resume``, or a directory given with ``--out``, was begun with; empty if new."""
    from spsbench.files import read_json

    resume: Path | None = params["resume"]
    place = resume or params["out"]
    if place is None or not (resume or (place / OPTIONS_FILE).is_file()):
        return {}
    return read_json(place / OPTIONS_FILE, "--resume" if resume else "--out")


def refuse_options(params: Mapping[str, Any], names: Iterable[str], of: str) -> None:
    """Refuse options that mean nothing to a paper."""
    for name in names:
        if _is_given(params[name]):
            raise UsageError(
                f"it has no meaning for the tables of {of}.",
                flag=f"--{name.replace('_', '-')}",
                remedy="Leave it out, or choose another paper with --of.",
            )


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``RunConfig`` that every run of a paper takes as they were typed."""
    return {name: options[name] for name in OF_EVERY_RUN if options[name] is not None}


def _is_given(value: Any) -> bool:
    """Whether an option was typed; a typed 0 was, a flag left out and an empty list were not."""
    return value is not None and value is not False and value != [] and value != ()


def _number(name: str, value: Any) -> Any:
    """A number where one was typed; other text stays, for the configuration to refuse."""
    return int(value) if name in _NUMBERS and isinstance(value, str) and value.isdigit() else value


def paper_directory(params: Mapping[str, Any], pair: str) -> Path:
    """Where everything goes; made if need be."""
    from spsbench.store import fresh_directory

    named: Path | None = params["resume"] or params["out"]
    if named is None:
        return fresh_directory(results_dir(), "paper", pair)
    try:
        named.mkdir(parents=True, exist_ok=True)
        strangers = any(named.iterdir()) and not (named / OPTIONS_FILE).is_file()
    except OSError as problem:
        raise UsageError(
            f"{named} cannot be used ({problem.strerror}).", flag="--out", remedy="Name another directory."
        ) from problem
    if strangers:
        raise UsageError(
            f"{named} is not empty and holds no paper.",
            flag="--out",
            remedy="Name a directory that is empty or does not exist.",
        )
    return named


def keep_options(directory: Path, options: Mapping[str, Any], runs: Iterable[tuple[Part, Plan]]) -> None:
    """Write what a paper is begun or continued with, unless a run that is there already forbids it."""
    from spsbench.files import write_json
    from spsbench.runner import require_continuable

    for part, ready in runs:
        require_continuable(ready, directory / part.name)
    write_json(directory / OPTIONS_FILE, options)
    continued_by(lambda: written("paper", "--resume", str(directory)))


def measure_part(part: Part, plan: Plan, directory: Path, place: tuple[int, int], *, quiet: bool) -> Measured:
    """Carry out one part, as far as it is not there already, and draw its figures."""
    from spsbench.cli.progress import watching
    from spsbench.cli.report import derive
    from spsbench.runner import execute

    say(f"{part.title} ({place[0]} of {place[1]})", quiet=quiet)
    with watching(quiet=quiet) as watcher:
        execute(plan, directory / part.name, resume=True, watcher=watcher)
    measured, _ = derive(directory / part.name)
    return measured


def keep_page(
    page: Mapping[str, Any], text: str, screen: RenderableType, directory: Path, params: Mapping[str, Any]
) -> None:
    """Write ``paper.json`` and ``paper.md``, and print the page as tables or as JSON."""
    from spsbench.files import write_json, write_text

    write_json(directory / SUMMARY_FILE, page)
    write_text(directory / PAGE_FILE, text)
    present(lambda: page, lambda: screen, json=params["json"], quiet=params["quiet"])
    say(f"Everything is in {directory / PAGE_FILE}", quiet=params["quiet"])
    if not page["complete"]:
        raise IncompleteError(
            "some sequences failed or are missing.",
            remedy=f"`spsbench paper --resume {directory}` tries again.",
        )

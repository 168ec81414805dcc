"""One folder that holds several runs, and the page of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import UsageError, write_json, write_text
from spsbench.cli import Common, derive, present, say, watching

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report import Measured
    from spsbench.runner import Plan

Page = Mapping[str, Any]


def require_empty(place: Path, flag: str, holds: str) -> None:
    """Refuse a folder with something in it that is not what it ``holds`` when it was begun before."""
    if place.is_dir() and any(place.iterdir()):
        remedy = "Name a directory that is empty or does not exist."
        raise UsageError(f"{place} is not empty and holds no {holds}.", flag=flag, remedy=remedy)


def measured_run(plan: Plan, directory: Path, *, quiet: bool, allow_mixed: bool = False) -> Measured:
    """Measure what is missing of a run, and draw its figures."""
    from spsbench.runner import execute

    with watching(quiet=quiet) as watcher:
        execute(plan, directory, resume=True, watcher=watcher, allow_mixed=allow_mixed)
    measured, _ = derive(directory)
    return measured


def write_page(file: Path, page: Page, text: str, screen: RenderableType, options: Common) -> None:
    """Write a page, also as JSON beside it, and print it as tables or as JSON."""
    write_json(file.with_suffix(".json"), page)
    write_text(file, text)
    present(lambda: page, lambda: screen, json=options.json, quiet=options.quiet)
    say(f"Everything is in {file}", quiet=options.quiet)


def linked_run(title: str, folder: str, task: str, prompts: int, notes: Iterable[str]) -> list[str]:
    """Lines of Markdown: a run with a link to its report, and the notes on it."""
    from spsbench.report import escape, wording

    about = f"{escape(task)}, {wording.counted(prompts, 'prompt')}"
    line = f"* [{escape(title)}]({folder}/report.md): {about}"
    return [line, *(f"  * {escape(note)}" for note in notes)]

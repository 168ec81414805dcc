"""One folder that holds several runs, and the page of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import UsageError, write_json, write_text
from spsbench.cli import Common, present, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.report import Measured, Table
    from spsbench.runner import Plan

Page = Mapping[str, Any]


def require_empty(place: Path, flag: str, holds: str) -> None:
    """Refuse a folder with something in it that is not what it ``holds`` when it was begun before."""
    if place.is_dir() and any(place.iterdir()):
        remedy = "Name a directory that is empty or does not exist."
        raise UsageError(f"{place} is not empty and holds no {holds}.", flag=flag, remedy=remedy)


def measured_run(plan: Plan, directory: Path, *, quiet: bool, allow_mixed: bool = False) -> Measured:
    """Measure what is missing of a run, and draw its figures."""
    from spsbench.cli import derive, watching
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


def markdown(page: Page, title: str, parts: Sequence[str | Table], runs: Iterable[list[str]]) -> str:
    """A page as GitHub renders it, with its runs (see ``linked_run``) at the end."""
    from spsbench.report import escape, paragraphs, wording

    lines = [line for run in runs for line in run]
    synthetic = wording.SYNTHETIC if page["synthetic"] else ""
    return "\n".join(paragraphs(f"# {escape(title)}", *parts, "## The runs", lines, synthetic)) + "\n"


def linked_run(title: str, folder: str, task: str, prompts: int, notes: Iterable[str]) -> list[str]:
    """Lines of Markdown: a run with a link to its report, and the notes on it."""
    from spsbench.report import escape, wording

    about = f"{escape(task)}, {wording.counted(prompts, 'prompt')}"
    line = f"* [{escape(title)}]({folder}/report.md): {about}"
    return [line, *(f"  * {escape(note)}" for note in notes)]

"""The `spsbench` commands that README.md, docs/ and examples/ show in their code blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer
import typer.main
from support.commandline import is_present

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.cli.main import app
from spsbench.cli.options import RunOptions
from spsbench.cli.settings import read_settings

ROOT = Path(__file__).parents[2]

LAUNCHERS = ("$", "srun", "torchrun", "python", "python3", "uv", "uvx", "pipx")
_OPERATORS = frozenset({"|", "||", "&&", ";", ">", ">>", "2>"})
_COMMAND = re.compile(r"(^|[\s/])spsbench\s")


@dataclass(frozen=True)
class Command:
    """A command as a page shows it.

    Attributes:
        page: relative to the repository.
        launcher: what stands before the program, e.g. ``torchrun --nproc-per-node 2 -m``.
        arguments: after the program's name.
    """

    page: str
    launcher: tuple[str, ...]
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join([*self.launcher, 'spsbench', *self.arguments])}"


@dataclass(frozen=True)
class Mention:
    """A command as a sentence names it, in backticks: it need not be whole.

    Attributes:
        page: relative to the repository.
        text: after the program's name.
    """

    page: str
    text: str


def pages() -> list[Path]:
    """Every page for users, the examples among them."""
    found = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "results/README.md"]
    folders = (("docs", "*.md"), ("examples", "*.md"), ("examples", "*.py"))
    found += [path for folder, pattern in folders for path in sorted((ROOT / folder).glob(pattern))]
    return found + sorted((ROOT / "spsbench").glob("**/README.md"))


def commands() -> list[Command]:
    """All of them, each once a page."""
    found = dict.fromkeys(command for page in pages() for command in shown(page.read_text(), page))
    return [command for command in found if is_present(command.arguments)]


def shown(text: str, page: Path) -> Iterator[Command]:
    """The commands of one page's code blocks: fenced, or four spaces deep."""
    for line in code_lines(text, fenced=page.suffix == ".md"):
        if _COMMAND.search(line) and (command := read(line, page)) is not None:
            yield command


def mentions() -> list[Mention]:
    """Every command in backticks within a sentence or a table of the Markdown pages."""
    found = {}
    for page in pages():
        if page.suffix == ".md":
            prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
            for text in re.findall(r"`spsbench ([^`]+)`", prose):
                if is_present(text):
                    found[Mention(str(page.relative_to(ROOT)), " ".join(text.split()))] = None
    return list(found)


def unknown(mention: Mention) -> list[str]:
    """The command of a mention that does not exist, or its options that the command has not."""
    group: Any = typer.main.get_command(app)
    first = mention.text.split()[0]
    if first.startswith("-"):
        known = {name for parameter in group.params for name in parameter.opts}
    elif first not in group.commands:
        return [first]
    else:
        known = {name for parameter in group.commands[first].params for name in parameter.opts}
    options = re.findall(r"(?<![\w-])--[a-z][\w-]*", mention.text)
    return [option for option in options if option not in known | {"--help"}]


def code_lines(text: str, *, fenced: bool) -> Iterator[str]:
    """Lines of code, one that goes on after a backslash as one; of a Python file every line."""
    inside = not fenced
    for line in text.replace("\\\n", " ").splitlines():
        if fenced and line.lstrip().startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            yield line.strip()


def read(line: str, page: Path) -> Command | None:
    """The command of a line of shell; None of a line that only mentions one."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    words = words[: next((n for n, word in enumerate(words) if word in _OPERATORS), len(words))]
    program = next((n for n, word in enumerate(words) if Path(word).name == "spsbench"), None)
    if program is None:
        return None
    before = tuple(words[:program])
    starts = not before or before[0] in LAUNCHERS or "=" in before[0]
    where = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    return Command(str(where), before, tuple(words[program + 1 :])) if starts else None


def refused(command: Command) -> str | None:
    """What the command line says against a command before it does anything; None if it takes it.

    Names and types of options are looked at for every command; for ``run`` and ``sweep-k`` values, too,
    as far as they are the page's and not the reader's.
    """
    try:
        name, params = parsed(command)
        if name in ("run", "sweep-k"):
            known = {field.name for field in fields(RunOptions)}
            # Of an option that may be repeated the parser has an empty tuple, of which typer makes None.
            typed = {name: None if value == () else value for name, value in params.items() if name in known}
            options = RunOptions(**typed)
            if not _of_the_reader(command, options):
                read_settings(options)
    except typer.TyperException as error:
        return error.format_message()
    except UsageError as error:
        return str(error)
    except (UnavailableError, typer.Exit):  # a file of the reader's, or --version
        return None
    return None


def _of_the_reader(command: Command, options: RunOptions) -> bool:
    """Whether a page leaves values open, a run of the reader goes on, or a server is measured."""
    beyond = options.concurrency is not None or options.resume is not None
    return beyond or any("$" in word or "..." in word for word in command.arguments)


def parsed(command: Command) -> tuple[str, dict[str, Any]]:
    """The name of a command and its options, by the real command line."""
    group: Any = typer.main.get_command(app)
    if not command.arguments or command.arguments[0].startswith("-"):
        group.make_context("spsbench", list(command.arguments))
        return "", {}
    context = group.make_context("spsbench", list(command.arguments))
    name, found, rest = group.resolve_command(context, list(command.arguments))
    return name, found.make_context(name, rest, parent=context).params

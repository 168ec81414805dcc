"""What typer leaves open of a command: an option is given once, and its help ends with the exit codes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from spsbench.errors import UsageError

LIST = "LIST"
"""The metavar of options whose value is a list: ``--k 2,4``."""


def refuse_repeated(command: Any, context: Any, arguments: Sequence[str]) -> None:
    """Refuse an option that is given twice, unless giving it again adds to it.

    The parser would keep the last value without a word, and a user who types ``--k 2 --k 4`` means both.
    """
    *_, given = command.make_parser(context).parse_args(args=list(arguments))
    for parameter, count in Counter(given).items():
        if count == 1 or parameter.multiple or parameter.param_type_name != "option":
            continue
        flag = parameter.opts[0]
        values = _values(parameter.opts, arguments) if parameter.metavar == LIST else ()
        listed = f": {flag} {','.join(values)}" if parameter.metavar == LIST else ""
        raise UsageError("it is given twice.", flag=flag, remedy=f"Give {flag} once{listed}.")


def _values(flags: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """What was typed after each of an option's occurrences."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in flags:
            yield value if equals else arguments[place + 1]


NARROW = 60
"""Columns below which help is plain text: in a table of panels the names of options would be cut."""


@contextmanager
def fitting_help(command: Any, formatter: Any) -> Iterator[None]:
    """While the block lasts a command's help fits the terminal, without panels where that is narrow."""
    columns, usual = shutil.get_terminal_size().columns, command.rich_markup_mode
    if columns < NARROW:
        command.rich_markup_mode, formatter.width = None, columns
    try:
        yield
    finally:
        command.rich_markup_mode = usual


class Command(TyperCommand):
    """A command of spsbench."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, each option once."""
        if not ctx.resilient_parsing:  # completion looks at commands that are half typed
            refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer does, at any width."""
        with fitting_help(self, formatter):
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """``spsbench`` itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, each option once."""
        if not ctx.resilient_parsing:
            refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer does, at any width."""
        with fitting_help(self, formatter):
            super().format_help(ctx, formatter)

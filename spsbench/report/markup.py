"""Pieces of Markdown, safe for text that nobody vouches for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spsbench.report.wording import printable

# An underscore within a word is no markup on GitHub and reads better bare.
_SPECIAL = re.compile(r"([\\`*\[\]|~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def escape(text: object) -> str:
    """The text as it reads, on one line: no markup, HTML, link or table border comes out of it."""
    line = " ".join(printable(str(text)).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def table(header: Sequence[str], rows: Sequence[Sequence[object]], align: str) -> list[str]:
    """Lines of a GitHub table; cells are escaped, the header is taken as Markdown.

    Args:
        header: titles.
        rows: cells, as many per row as there are titles.
        align: one letter per column, ``l`` or ``r``.
    """
    rules = ["--:" if letter == "r" else ":--" for letter in align]
    lines = [header, rules, *([escape(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def fence(text: str) -> list[str]:
    """A code block that the text cannot end."""
    body = [printable(line).rstrip() for line in text.splitlines()]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    marks = "`" * max(3, longest + 1)
    return [marks, *body, marks]

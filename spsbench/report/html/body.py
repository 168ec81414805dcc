"""Sections of report.md as HTML: what is said once is said the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from spsbench.report import markdown
from spsbench.report.measured import Measured

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class Block:
    """A section.

    Attributes:
        anchor: its id on the page; empty if it has no heading of the second level.
        title: of that heading.
        html: safe to be put into a page.
    """

    anchor: str
    title: str
    html: str


def heading(measured: Measured) -> str:
    """What report.md says first, without its title."""
    lines = next((block for block in _sections(measured) if block[0].startswith("# ")), [])
    return render(lines[1:]).html


def blocks(measured: Measured, prefix: str) -> list[Block]:
    """Every other section, in the order of report.md; anchors begin with ``prefix``."""
    return [render(lines, prefix) for lines in _sections(measured) if not lines[0].startswith("# ")]


def render(lines: Sequence[str], prefix: str = "") -> Block:
    """Markdown as HTML; HTML within the Markdown is shown as text, never taken as such."""
    parser = _parser()
    tokens = parser.parse("\n".join(lines))
    anchor = title = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            title = _plain(tokens[place + 1])
            anchor = prefix + "".join(c if c.isalnum() else "-" for c in title.lower())
            token.attrSet("id", anchor)
    return Block(anchor, title, parser.renderer.render(tokens, parser.options, {}))


def _sections(measured: Measured) -> list[list[str]]:
    found = (section(measured.summary, measured.run) for section in markdown.SECTIONS)
    return [lines for lines in found if lines]


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table class="sortable">')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser

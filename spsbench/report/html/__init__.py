"""report.html: one file that needs no network, in light and dark; its sections are those of report.md."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spsbench
from spsbench.axes import label
from spsbench.report import comparison, facts, sections, wording
from spsbench.report.figures import Gallery
from spsbench.report.figures.style import inline, inline_narrow
from spsbench.report.measured import Measured
from spsbench.report.tables import Table
from spsbench.report.trace import LEGEND, Trace, traces
from spsbench.summary_types import ArmRow, RatioInterval, SpeedVerdict

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Block:
    """A section.

    Attributes:
        anchor: its id on the page; empty if it has no heading of the second level.
    """

    anchor: str
    title: str
    html: str


def heading(measured: Measured) -> str:
    """What report.md says first, without its title."""
    lines = next(
        (
            block
            for block in sections.markdown(measured.summary, measured.run, setup=False)
            if block[0].startswith("# ")
        ),
        [],
    )
    return render(lines[1:]).html


def blocks(measured: Measured, prefix: str) -> list[Block]:
    """Every other section, in the order of report.md; anchors begin with ``prefix``."""
    return [
        render(lines, prefix)
        for lines in sections.markdown(measured.summary, measured.run, setup=False)
        if not lines[0].startswith("# ")
    ]


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


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser


_FEW, _WIDE = 3, 14
"""Columns: up to ``_FEW`` the last may break anywhere in print, above ``_WIDE`` the paper is turned."""


def _table_open(renderer: Any, tokens: Sequence[Token], place: int, *_: Any) -> str:
    end = next(i for i in range(place, len(tokens)) if tokens[i].type == "thead_close")
    columns = sum(token.type == "th_open" for token in tokens[place:end])
    kind = " few" if columns <= _FEW else " wide" if columns > _WIDE else ""
    return f'<div class="scroll{kind}" role="group"><table class="sortable" style="--columns: {columns}">'


_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    caption: str
    svg: Markup
    narrow_svg: Markup


@dataclass(frozen=True, slots=True)
class _Run:
    """What the template needs of one run."""

    prefix: str
    name: str
    title: str
    synthetic: bool
    setup: list[tuple[str, str]]
    cards: list[dict[str, str]]
    heading: Markup
    results: Markup
    figures: list[_Figure]
    left_out: Sequence[tuple[str, str]]
    traces: tuple[Trace, ...]
    traced: bool
    details: list[Any]


def page(runs: Sequence[tuple[Measured, Gallery]]) -> str:
    """One self-contained page for one run or for several side by side.

    It asks for nothing: a content security policy forbids every request and every script but its own.
    """
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, keep_trailing_newline=True)
    script = (_HERE / "script.js").read_text(encoding="utf-8")
    shown = [_run(f"r{number}-", *run) for number, run in enumerate(runs)]
    measured = [run for run, _ in runs]
    return environment.get_template("page.html").render(
        title=shown[0].title if len(shown) == 1 else f"{len(shown)} runs side by side",
        version=spsbench.__version__,
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        runs=shown,
        comparison=_comparison(measured) if len(shown) > 1 else None,
        legend=LEGEND,
    )


def _comparison(runs: Sequence[Measured]) -> dict[str, Any]:
    names = [measured.name for measured in runs]
    different = comparison.differences(runs, names)
    return {
        "table": _table(comparison.compared(runs, names)),
        "differences": _table(different) if different.rows else None,
        "note": comparison.NOTE.replace("`", ""),
    }


def _table(table: Table) -> Markup:
    from markupsafe import Markup

    return Markup(render(table.as_markdown()).html)


def _run(prefix: str, measured: Measured, gallery: Gallery) -> _Run:
    from markupsafe import Markup

    found = blocks(measured, prefix)
    results = [block for block in found if block.title == "Results"]
    rest = [block for block in found if block.title != "Results"]
    traced = traces(measured)
    return _Run(
        prefix=prefix,
        name=measured.name,
        title=wording.title(measured.summary).replace(" (synthetic)", ""),  # the badge says it
        synthetic=bool(measured.summary.get("synthetic")),
        setup=facts.facts(measured.summary, measured.run),
        cards=_cards(measured),
        heading=Markup(heading(measured)),
        results=Markup("".join(block.html for block in results)),
        figures=[
            _Figure(
                plate.title,
                plate.caption,
                Markup(inline(plate, prefix)),
                Markup(inline_narrow(plate, prefix)),
            )
            for plate in gallery.plates
        ],
        left_out=gallery.left_out,
        traces=traced,
        traced=bool(traced),
        details=[(block.anchor, block.title, Markup(block.html)) for block in rest],
    )


def _cards(measured: Measured) -> list[dict[str, str]]:
    """The arm of each verdict in large figures; none where the times are not to be trusted."""
    rows = {row["arm"]: row for row in measured.summary["rows"]}
    return [_card(rows[found["arm"]], found, rows) for found in measured.summary.get("verdict") or []]


def _card(row: ArmRow, found: SpeedVerdict, rows: Mapping[str, ArmRow]) -> dict[str, str]:
    return {
        "name": f"{label(row)}, {row['sampling']}",
        "ratio": f"{found['speedup']['ratio']:.2f}",
        "interval": _interval(found["speedup"]),
        "times": f"{_ms(rows.get(row['baseline'] or ''))} \u2192 {_ms(row)} ms/token",
        "length": f"{wording.number(row['tokens_per_loop'], 2)} tokens/loop",
        "whole": f"{wording.speedup(found['end_to_end'])} end to end" if found["end_to_end"] else "",
    }


def _interval(speedup: RatioInterval) -> str:
    low, high = speedup["low"], speedup["high"]
    return "no interval" if low is None else f"95%: {low:.2f} to {high:.2f}"


def _ms(row: ArmRow | None) -> str:
    return wording.milliseconds(row["ms_per_token"] if row else None)

"""report.html: one file that needs no network, in light and dark; its sections are those of report.md."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spsbench
from spsbench.report import facts, results, wording
from spsbench.report.figures import Gallery
from spsbench.report.figures.style import inline
from spsbench.report.measured import Measured
from spsbench.report.messages.runs import FATES, SIDE_BY_SIDE_NOTE
from spsbench.report.sections import markdown
from spsbench.report.trace import traces

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markupsafe import Markup

    from spsbench.store.summary_types import Summary


def render(lines: Sequence[str], prefix: str = "") -> tuple[str, str, Markup]:
    """Return (anchor, title, HTML) of Markdown; HTML within it is shown as text.

    The anchor begins with ``prefix``; it and the title are empty without a heading of the second level.
    """
    from markupsafe import Markup

    parser = _parser()
    tokens = parser.parse("\n".join(lines))
    anchor = title = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            title = "".join(child.content for child in tokens[place + 1].children or [])
            anchor = prefix + "".join(c if c.isalnum() else "-" for c in title.lower())
            token.attrSet("id", anchor)
    return anchor, title, Markup(parser.renderer.render(tokens, parser.options, {}))


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


def page(runs: Sequence[tuple[Measured, Gallery]]) -> str:
    """One self-contained page for one run or for several side by side.

    It asks for nothing: a content security policy forbids every request and every script but its own.
    """
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, keep_trailing_newline=True)
    script = (_HERE / "script.js").read_text(encoding="utf-8")
    shown = [_content_of_run(f"r{number}-", *run) for number, run in enumerate(runs)]
    measured = [run for run, _ in runs]
    return environment.get_template("page.html").render(
        title=f"{len(shown)} runs side by side" if len(shown) > 1 else _task_and_models(measured[0].summary),
        version=spsbench.__version__,
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        runs=shown,
        comparison=_comparison(measured) if len(shown) > 1 else None,
        legend=FATES,
    )


def _comparison(runs: Sequence[Measured]) -> dict[str, Any]:
    names = [measured.name for measured in runs]
    different = results.differences(runs, names)
    return {
        "table": render(results.several_runs(runs, names).as_markdown())[2],
        "differences": render(different.as_markdown())[2] if different.rows else None,
        "note": SIDE_BY_SIDE_NOTE.replace("`", ""),
    }


def _content_of_run(prefix: str, measured: Measured, gallery: Gallery) -> dict[str, Any]:
    """For the template: sections in report.md's order, results apart."""
    from markupsafe import Markup

    summary = measured.summary
    first, *sections = markdown(summary, measured.run, setup=False)
    blocks = [render(lines, prefix) for lines in sections]
    traced = traces(measured)
    return {
        "prefix": prefix,
        "name": measured.name,
        "title": _task_and_models(summary),
        "synthetic": bool(summary.get("synthetic")),
        "setup": facts.facts(summary, measured.run),
        "cards": _verdict_cards(measured),
        "heading": render(first[1:])[2],
        "results": Markup("").join(html for _, title, html in blocks if title == "Results"),
        "figures": [
            {
                "title": plate.title,
                "caption": plate.caption,
                "svg": Markup(inline(plate, prefix)),
                "narrow_svg": Markup(inline(plate, prefix, narrow=True)),
            }
            for plate in gallery.plates
        ],
        "left_out": gallery.left_out,
        "traces": traced,
        "traced": bool(traced),
        "details": [block for block in blocks if block[1] != "Results"],
    }


def _task_and_models(summary: Summary) -> str:
    """A badge beside it marks what is synthetic."""
    task = wording.title(summary).replace(" (synthetic)", "")
    return ", ".join(filter(None, (task, wording.models(summary))))


def _verdict_cards(measured: Measured) -> list[dict[str, str]]:
    """The arm of each verdict in large figures; none where contention hides the answer."""
    rows, cards = {row["arm"]: row for row in measured.summary["rows"]}, []
    for verdict in measured.summary.get("verdict") or []:
        if "leaning" in verdict:
            continue
        row, speedup, whole = rows[verdict["arm"]], verdict["speedup"], verdict["end_to_end"]
        baseline = rows.get(row["baseline"] or "")
        before = wording.milliseconds(baseline["ms_per_token"] if baseline else None)
        low, high = speedup["low"], speedup["high"]
        cards.append(
            {
                "name": wording.full_name(row),
                "ratio": f"{speedup['ratio']:.2f}",
                "interval": "no interval" if low is None else f"95%: {low:.2f} to {high:.2f}",
                "times": f"{before} \u2192 {wording.milliseconds(row['ms_per_token'])} ms/token",
                "length": f"{wording.number(row['tokens_per_loop'], 2)} tokens/loop",
                "whole": f"{wording.speedup(whole)} end to end" if whole else "",
            }
        )
    return cards

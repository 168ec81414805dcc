"""The page: a template, a style and a script in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spsbench
from spsbench.axes import label
from spsbench.report import side_by_side, wording
from spsbench.report.figures import Gallery
from spsbench.report.figures.printing import inline
from spsbench.report.html import body
from spsbench.report.measured import Measured
from spsbench.report.trace import LEGEND, Trace, traces

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class _Run:
    """What the template needs of one run."""

    prefix: str
    name: str
    title: str
    synthetic: bool
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
    return {
        "header": side_by_side.header(runs),
        "align": ["right" if letter == "r" else "left" for letter in side_by_side.ALIGN],
        "rows": side_by_side.table(runs),
        "names": [measured.name for measured in runs],
        "differences": side_by_side.differences(runs),
        "note": side_by_side.NOTE.replace("`", ""),
    }


def _run(prefix: str, measured: Measured, gallery: Gallery) -> _Run:
    from markupsafe import Markup

    blocks = body.blocks(measured, prefix)
    results = [block for block in blocks if block.title == "Results"]
    rest = [block for block in blocks if block.title != "Results"]
    found = traces(measured)
    return _Run(
        prefix=prefix,
        name=measured.name,
        title=wording.title(dict(measured.summary)).replace(" (synthetic)", ""),  # the badge says it
        synthetic=bool(measured.summary.get("synthetic")),
        cards=_cards(measured),
        heading=Markup(body.heading(measured)),
        results=Markup("".join(block.html for block in results)),
        figures=[
            _Figure(plate.title, plate.caption, Markup(inline(plate, prefix))) for plate in gallery.plates
        ],
        left_out=gallery.left_out,
        traces=found,
        traced=bool(found),
        details=[(block.anchor, block.title, Markup(block.html)) for block in rest],
    )


def _cards(measured: Measured) -> list[dict[str, str]]:
    """The fastest speculative arm of each sampling in large figures."""
    cards = []
    for series in measured.series:
        rows = [row for row in series.speculative if row["speedup"]]
        if not rows:
            continue
        best = max(rows, key=lambda row: row["speedup"]["ratio"])
        base = next((row for row in measured.summary["rows"] if row["arm"] == best["baseline"]), None)
        cards.append(
            {
                "name": f"{label(best)}, {best['sampling']}",
                "ratio": f"{best['speedup']['ratio']:.2f}",
                "interval": _interval(best["speedup"]),
                "times": f"{_ms(base)} \u2192 {_ms(best)} ms/token",
                "length": f"{wording.number(best['tokens_per_loop'], 2)} tokens/loop",
            }
        )
    return cards


def _interval(speedup: dict[str, Any]) -> str:
    low, high = speedup["low"], speedup["high"]
    return "no interval" if low is None else f"95%: {low:.2f} to {high:.2f}"


def _ms(row: dict[str, Any] | None) -> str:
    return wording.milliseconds(row["ms_per_token"] if row else None)

"""Whole reports of a simulated run, word for word.

After a change that is meant, write them anew and read the difference:
``SPSBENCH_WRITE_GOLDEN=1 pytest tests/report/test_golden.py``
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from support.synthetic_run import gallery, measured

from spsbench.base.axes import label
from spsbench.report import results
from spsbench.report.exports import to_csv, to_latex
from spsbench.report.html import page
from spsbench.report.sections import render, show

GOLDEN = Path(__file__).parent / "golden"


def markdown() -> str:
    return undated(render(dict(measured().summary), {**measured().run, "gallery": gallery()}))


def undated(text: str) -> str:
    """The fixture is made when it is read."""
    return re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:[\d.]+\+00:00| UTC)", "DATE", text)


def html() -> str:
    """What the page holds; its style, script and plots are looked at elsewhere."""
    text = page([(measured(), gallery())])
    body = text[text.index("<main>") : text.index("</main>")]
    body = re.sub(r"<svg.*?</svg>", "<svg/>", body, flags=re.DOTALL)
    return undated(re.sub(r"<footer>.*", "", body, flags=re.DOTALL))


def screen(width: int) -> str:
    """The first screen of a terminal of that width, without colour."""
    file = io.StringIO()
    show(measured().summary, Console(file=file, width=width, no_color=True))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def csv() -> str:
    """To twelve digits: the last ones are those of the CPU's sums."""
    return re.sub(r"\d+\.\d{11,}", lambda number: f"{float(number[0]):.12g}", undated(to_csv([measured()])))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("report.md", markdown),
        ("report.html", html),
        ("rows.csv", csv),
        *((f"screen-{width}.txt", partial(screen, width)) for width in (40, 80, 120)),
    ],
)
def test_the_report_reads_as_it_did(name: str, make: object) -> None:
    assert callable(make)
    path = GOLDEN / name
    if os.environ.get("SPSBENCH_WRITE_GOLDEN"):
        path.write_text(make(), encoding="utf-8")
    assert make() == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal_and_no_arm_loses_its_name(width: int) -> None:
    text = screen(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for row in measured().summary["rows"]:
        assert label(row) in text
        assert row["sampling"] in text


def test_a_column_of_the_main_table_is_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever renderer shows the table, it takes its columns from one place."""
    monkeypatch.setattr(results, "TOKENS", replace(results.TOKENS, title="planted", latex="Planted"))
    assert all("planted" in made() for made in (markdown, html, partial(screen, 80), partial(screen, 40)))
    assert "& Planted" in to_latex([measured()])

"""Arms with many axes on a screen of 80 columns."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from itertools import product
from typing import Any

from rich.console import Console

from spsbench.base.axes import label
from spsbench.report.sections import show

Make = Callable[..., dict[str, Any]]


def _screen(summary: dict[str, Any]) -> list[str]:
    file = io.StringIO()
    show(summary, Console(file=file, width=80, no_color=True))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _names(lines: list[str]) -> str:
    """The first column of a table's lines, in one line."""
    return " ".join(" ".join(re.split(r"\s{2,}", line.strip())[0] for line in lines).split())


def _sps(make_row: Make, k: int = 4, sampling: str = "nucleus", **axes: Any) -> dict[str, Any]:
    name = "-".join([f"sps{k}", sampling, *map(str, axes.values())])
    return make_row("sps", k, sampling, arm=name, **axes)


def test_a_row_is_called_what_sentences_call_its_arm(make_row: Make, make_summary: Make) -> None:
    """Names are broken over lines, and the end-to-end speedup is left out, before a name is cut short."""
    drafting = product(("model", "lookup"), ("modified-rejection", "sample-and-compare"), (2, 4))
    rows = [_sps(make_row, k, drafter=drafter, rule=rule) for drafter, rule, k in drafting]
    lines = _screen(make_summary(make_row("ars", 0), *rows))
    assert lines[1] == " xsum-mini (synthetic), pair mini, 50 prompts, nucleus"
    assert lines[3].split() == ["arm", "ROUGE-2", "ms/token", "speedup", "[95%]", "tokens/loop"]
    assert _names(lines[5:20]).startswith(" ".join(["ArS", *map(label, rows)]))
    assert max(map(len, lines)) <= 80


def test_several_samplings_stand_above_their_arms(make_row: Make, make_summary: Make) -> None:
    rows = []
    for sampling in ("nucleus", "greedy"):
        rows.append(make_row("ars", 0, sampling))
        rows.append(_sps(make_row, sampling=sampling, drafter="suffix", rule="lenience", lossless=False))
    lines = _screen(make_summary(*rows))
    assert lines[1] == " xsum-mini (synthetic), pair mini, 50 prompts"
    own = "ArS SpS (K=4, suffix, lenience, lossy)"
    assert _names(lines[5:18]).startswith(f"nucleus {own} greedy {own}")
    assert max(map(len, lines)) <= 80


def test_names_that_fit_in_no_column_stand_above_their_cells(make_row: Make, make_summary: Make) -> None:
    drafters = [f"union:of=lookup+suffix+model,order={n}" for n in (1, 2)]
    lines = _screen(make_summary(make_row("ars", 0), *(_sps(make_row, drafter=name) for name in drafters)))
    assert f" SpS (K=4, {drafters[0]}), nucleus" in lines
    assert max(map(len, lines)) <= 80


def test_rules_are_told_once_each(make_row: Make, make_summary: Make) -> None:
    rows = [
        _sps(make_row, k, verification_rule=rule) for rule in ("this one", "that one") for k in range(1, 7)
    ]
    text = "\n".join(_screen(make_summary(make_row("ars", 0), *rows[:8])))
    assert " 6 arms verify by: this one\n SpS (K=1), SpS (K=2) verify by: that one\n" in text

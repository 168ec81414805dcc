"""Arms with many axes on a screen of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import product
from typing import Any

from rich.console import Console

from spsbench.report.terminal import show

Make = Callable[..., dict[str, Any]]


def _screen(summary: dict[str, Any]) -> list[str]:
    file = io.StringIO()
    show(summary, Console(file=file, width=80, no_color=True))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _sps(make_row: Make, k: int = 4, sampling: str = "nucleus", **axes: Any) -> dict[str, Any]:
    name = "-".join([f"sps{k}", sampling, *map(str, axes.values())])
    return make_row("sps", k, sampling, arm=name, **axes)


def test_groups_are_called_by_what_sets_them_apart(make_row: Make, make_summary: Make) -> None:
    drafting = product(("model", "lookup"), ("modified-rejection", "sample-and-compare"), (2, 4))
    rows = [_sps(make_row, k, drafter=drafter, rule=rule) for drafter, rule, k in drafting]
    lines = _screen(make_summary(make_row("ars", 0), *rows))
    assert lines[1] == " xsum-mini (synthetic), pair mini, 50 prompts, nucleus"
    assert lines[3:14] == [
        " arm        ROUGE-2  ms/token  speedup [95%]       end to end  tokens/loop",
        " ─────────────────────────────────────────────────────────────────────────",
        " ArS          0.112      14.1  1x                          1x         1.00",
        "",
        " model, modified-rejection",
        " SpS (K=2)    0.114      7.52  1.92x [1.85, 1.99]       1.71x         3.21",
        " SpS (K=4)    0.114      7.52  1.92x [1.85, 1.99]       1.71x         3.21",
        "",
        " model, sample-and-compare",
        " SpS (K=2)    0.114      7.52  1.92x [1.85, 1.99]       1.71x         3.21",
        " SpS (K=4)    0.114      7.52  1.92x [1.85, 1.99]       1.71x         3.21",
    ]
    assert lines.count(" lookup, sample-and-compare") == 2  # in the table of acceptance too


def test_what_all_arms_have_in_common_is_said_once(make_row: Make, make_summary: Make) -> None:
    rows = [_sps(make_row, k, drafter="suffix", rule="sample-and-compare") for k in (2, 4)]
    lines = _screen(make_summary(make_row("ars", 0), *rows))
    assert lines[1:3] == [
        " xsum-mini (synthetic), pair mini, 50 prompts, nucleus, suffix,",
        " sample-and-compare",
    ]
    assert [line[:11].strip() for line in lines[6:9]] == ["ArS", "SpS (K=2)", "SpS (K=4)"]


def test_with_one_k_a_row_is_called_by_its_drafting(make_row: Make, make_summary: Make) -> None:
    rows = []
    for sampling in ("nucleus", "greedy"):
        rows.append(make_row("ars", 0, sampling))
        rows.append(_sps(make_row, sampling=sampling, drafter="model", rule="modified-rejection"))
        lossy = {"drafter": "suffix", "rule": "lenience", "lossless": False}
        rows.append(_sps(make_row, sampling=sampling, **lossy))
    lines = _screen(make_summary(*rows))
    assert lines[1] == " xsum-mini (synthetic), pair mini, 50 prompts, SpS (K=4)"
    names = [line[:40].split("  ")[0] for line in lines[5:14]]
    own = [" ArS", " model, modified-rejection", " suffix, lenience, lossy"]
    assert names == [" nucleus", *own, "", " greedy", *own]


def test_names_that_would_not_fit_in_a_column_stand_above_it(make_row: Make, make_summary: Make) -> None:
    drafters = [f"union:of=lookup+suffix+model,order={n}" for n in (1, 2)]
    lines = _screen(make_summary(make_row("ars", 0), *(_sps(make_row, drafter=name) for name in drafters)))
    assert lines[7:10:2] == [f" {drafters[0]}", ""]
    assert lines[8].startswith(" SpS (K=4)    0.114 ")
    assert max(map(len, lines)) <= 80


def test_a_policy_sets_a_row_apart(make_row: Make, make_summary: Make) -> None:
    rows = [make_row("ars", 0), _sps(make_row), _sps(make_row, policy="fix")]
    lines = _screen(make_summary(*rows))
    assert lines[1] == " xsum-mini (synthetic), pair mini, 50 prompts, nucleus, SpS (K=4)"
    assert lines[7].startswith(" fix ")


def test_rules_are_told_once_each(make_row: Make, make_summary: Make) -> None:
    rows = [
        _sps(make_row, k, verification_rule=rule) for rule in ("this one", "that one") for k in range(1, 7)
    ]
    text = "\n".join(_screen(make_summary(make_row("ars", 0), *rows[:8])))
    assert " 6 arms verify by: this one\n SpS (K=1), SpS (K=2) verify by: that one\n" in text

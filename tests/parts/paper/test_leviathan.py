"""Leviathan's tables from summaries written by hand."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from rich.console import Console

from spsbench.base.records import Interval
from spsbench.law.theory import expected_tokens, walltime_factor
from spsbench.parts.paper import report as paper
from spsbench.parts.paper.report import draw, gather_leviathan, table1, walltime_row
from spsbench.parts.paper.report import render_leviathan as render
from spsbench.parts.paper.report import screen_leviathan as screen

# Of the twelve rows of the paper's Table 2, by equation 1.
EXPECTED = (3.600, 4.161, 4.420, 2.574, 2.816, 2.572, 2.642, 3.143, 2.693, 2.081, 2.019, 2.049)
STUDY = {
    "target": None,
    "pair": "mini-t5",
    "drafts": {"small": {"id": "embedded:x/small"}, "own": {"id": "embedded:x/own"}},
    "tasks": {"ende": "wmt-mini"},
    "most_k": 10,
    "notes": "Made up.",
}


def test_table_1_is_the_papers_to_its_last_digit() -> None:
    for row in table1():
        assert round(row["operations"], 2) == row["paper"]["operations"]
        assert round(row["speed"], 2) == row["paper"]["speed"]
    assert [(row["alpha"], row["k"]) for row in table1()] == [
        (0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10),
    ]  # fmt: skip


def test_the_papers_table_2_comes_with_its_expected_tokens(make_row: Any, make_summary: Any) -> None:
    for (place, row), tokens in zip(paper.TABLE_2.items(), EXPECTED, strict=True):
        printed = walltime_row(**_measured(make_row, make_summary, *place))["paper"]
        assert printed["expected_tokens"] == pytest.approx(tokens, abs=6e-4)
        assert (printed["k"], printed["alpha"], printed["speed"]) == row


def _measured(
    make_row: Any, make_summary: Any, task: str = "ende", draft: str = "small", temperature: int = 0
) -> dict[str, Any]:
    """A run with alpha .7, c .1 and K 4 that is slower than the formula says, since verifying is dear."""
    sps, predicted = make_row(), walltime_factor(0.7, 0.1, 4)
    arm = {name: sps.get(name) for name in ("arm", "method", "sampling", "engine", "k")}
    factors = {
        "acceptance": expected_tokens(0.7, 4) / 5,
        "correlation": 1.05,
        "end": 0.98,
        "drafting": 1 / 1.4,
        "verifying": 0.8,
        "sampling_and_host": 0.9,
    }
    prediction = arm | {
        "alpha": 0.7,
        "c": 0.1,
        "c_source": "loops",
        "measured": 1.92,
        "predicted": predicted,
        "residual": 1.92 - predicted,
        "tokens_per_loop_predicted": expected_tokens(0.7, 4),
        "operations_factor": 1.9,
    }
    why = arm | {"factors": [{"name": name, "factor": value} for name, value in factors.items()]}
    summary = make_summary(
        prediction={"arms": [prediction], "samplings": []},
        why=[why],
        contention={"trusted": True, "reasons": []},
    )
    alpha, length = Interval(0.7, 0.68, 0.72), Interval(2.9, 2.8, 3.0)
    return {
        "place": (task, draft, temperature),
        "part": f"table2-{task}-{draft}-t{temperature}",
        "summary": summary,
        "alpha": alpha,
        "tokens_per_loop": length,
        "rehearsed_c": 0.2,
    }


@pytest.fixture
def page(make_row: Any, make_summary: Any) -> dict[str, Any]:
    rows = [_measured(make_row, make_summary), _measured(make_row, make_summary, draft="own", temperature=1)]
    ends: Any = {"estimate": 0.07, "low": 0.06, "high": 0.08}
    alphas: Any = [
        {"task": "ende", "draft": "unigram", "temperature": 1, "alpha": ends, "positions": 1_234}
        | {"paper": paper.TABLE_3["ende", "unigram", 1]}
    ]
    runs = {row["part"]: (f"Table 2, {row['place'][1]}", row["summary"]) for row in rows}
    found = gather_leviathan([walltime_row(**row) for row in rows], alphas, runs, "mini-t5")
    return {**found, "study": STUDY}


def test_a_row_says_what_makes_it_slower_than_the_formula(page: dict[str, Any]) -> None:
    row = page["table2"][0]
    assert row["residual"] == pytest.approx(1.92 - walltime_factor(0.7, 0.1, 4))
    assert row["cause"]["name"] == "verifying"
    assert {one["name"] for one in row["residual_factors"]} == {
        "selection", "correlation", "end", "drafted", "verifying", "sampling_and_host",
    }  # fmt: skip
    assert row["speedup"] == {"estimate": 1.92, "low": 1.85, "high": 1.99}


def test_where_phases_are_not_timed_c_is_the_rehearsals(make_row: Any, make_summary: Any) -> None:
    """As on a GPU: the row is predicted all the same, and says with which c."""
    run = _measured(make_row, make_summary)
    prediction: Any = run["summary"]["prediction"]
    assert prediction is not None
    unseen = {"c": None, "c_source": "not measured", "predicted": None, "residual": None}
    prediction["arms"][0] |= unseen
    (why,) = run["summary"]["why"]
    why["factors"] = [{"name": "acceptance", "factor": 0.5}, {"name": "loop_time", "factor": 0.7}]
    row = walltime_row(**run)
    assert (row["c"], row["c_source"]) == (0.2, "rehearsal")
    assert row["predicted"] == pytest.approx(walltime_factor(0.7, 0.2, 4))
    assert row["residual"] == pytest.approx(1.92 - walltime_factor(0.7, 0.2, 4))
    assert (row["residual_factors"], row["cause"]) == ([], None)
    prediction["arms"][0]["alpha"] = None
    assert walltime_row(**run)["predicted"] is None


def test_the_page_names_what_was_measured_and_where_c_is_from(page: dict[str, Any]) -> None:
    text = render(page)
    assert text.splitlines()[0].endswith("measured with the pair mini-t5 (synthetic)")
    assert text.splitlines()[2] == "Made up."
    assert "Source of c: loops (rows: 2)." in text
    page["table2"][1]["c_source"] = "rehearsal"
    page["study"] = STUDY | {"target": "org/T5", "notes": ""}
    text = render(page)
    assert text.splitlines()[0].endswith("measured with the target org/T5 (synthetic)")
    assert text.splitlines()[2].startswith("Target: org/T5.")
    assert "Source of c: loops (rows: 1), rehearsal (rows: 1)." in text
    assert "target org/T5" in draw(page)[0].svg


def test_the_page_has_ours_beside_the_papers(page: dict[str, Any]) -> None:
    text = render(page)
    assert "(synthetic)" in text.splitlines()[0]
    small, own = (line for line in text.splitlines() if line.startswith(("| small |", "| own |")))
    assert "| 1.92x \\[1.85, 1.99\\] |" in small
    assert "| 7, 0.75, 3.4x |" in small
    assert "verifying K+1 tokens against one target step (x0.80)" in small
    assert own.endswith("| - |")  # the paper has no draft of this name
    assert "| ende | unigram | 1 | 0.07 \\[0.06, 0.08\\] | 1,234 | 0.07 |" in text
    assert "small is embedded:x/small" in text


def test_the_screen_fits_a_terminal(page: dict[str, Any]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(screen(page))
    shown = console.export_text()
    assert "1.92x [1.85, 1.99]" in shown
    assert "Made up." in shown
    assert "Source of c: loops" in shown
    assert "…" not in shown


@pytest.mark.thorough
def test_the_figures_show_every_row_and_say_synthetic(page: dict[str, Any]) -> None:
    plates = draw(page)
    assert [plate.name for plate in plates] == ["figure2", "figure3", "figure4"]
    for plate in plates:
        assert "SYNTHETIC" in plate.svg
        assert "small" in plate.svg
        assert plate.png.startswith(b"\x89PNG")


def test_no_row_lies_beyond_an_axis(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that always agrees, with K = 40: 41 tokens per loop."""
    monkeypatch.setattr(paper, "printed", lambda drawing: drawing)
    edge: Any = {"estimate": 41.0, "low": 41.0, "high": 41.0}
    page["table2"][0] |= {"k": 40, "alpha": {"estimate": 1.0, "low": 1.0, "high": 1.0}, "predicted": 30.0}
    page["table2"][0] |= {"tokens_per_loop": edge, "expected_tokens": 41.0, "operations": 20.0}
    page["table2"][0] |= {"speedup": {"estimate": 25.0, "low": 24.0, "high": 33.0}}
    tokens, best, factors = (cast(Any, drawing).figure.axes for drawing in draw(page))
    highest = zip([*tokens, *best, *factors], (41, 40, 33, 20), strict=True)
    assert all(axes.get_ylim()[1] > value for axes, value in highest)


@pytest.mark.thorough
def test_a_row_without_prediction_or_intervals_can_be_shown(make_row: Any, make_summary: Any) -> None:
    """Of a run on a busy machine, or one that failed."""
    bare = make_summary(
        make_row("ars", 0),
        make_row(speedup=None),
        prediction=None,
        why=None,
        contention={"trusted": False, "reasons": ["others computed"]},
    )
    row = walltime_row(("ende", "small", 0), "part", bare, None, None, rehearsed_c=0.2)
    page = {**gather_leviathan([row], [], {"part": ("Table 2", bare)}, "mini-t5"), "study": STUDY}
    line = next(line for line in render(page).splitlines() if line.startswith("| small |"))
    assert line.split(" | ")[3:10] == ["-"] * 7
    assert "Disturbed: CPU contention took" in render(page)
    assert len(draw(page)) == 3

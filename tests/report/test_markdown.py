"""report.md: every section says what it should, and nothing where it has nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from spsbench.report.sections import render
from spsbench.stats.messages import LEGEND

Make = Callable[..., dict[str, Any]]

RUN = {
    "environment": {
        "cpu": {"model": "a | b", "cores": 2},
        "gpus": [],
        "libraries": {"torch": "2.13.0", "datasets": None},
        "command": "spsbench run xsum --k 4",
    }
}


def test_the_report_has_its_parts_in_order(make_summary: Make) -> None:
    text = render(make_summary(), RUN)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert titles == [
        "xsum-mini (synthetic)",
        "Results",
        "Acceptance",
        "Every name",
        "Legend",
        "Details",
        "Timing",
        "Mean time of a loop",
        "Caveats",
        "Environment",
        "Reproduce",
    ]
    assert (
        "| SpS (K=4) | nucleus | 0.114 | 7.52 | 1.92x \\[1.85, 1.99\\] | 1.71x \\[1.65, 1.78\\] | 3.21 |"
        in text
    )
    assert "Synthetic data, or a pair trained on it" in text
    assert "```\nspsbench run xsum --k 4\n```" in text


def test_the_data_are_named_by_their_source(make_summary: Make) -> None:
    assert "\nData: hub/xsum  \n" in render(make_summary(data={"source": "hub/xsum", "seed": 0}), RUN)


def test_every_name_of_acceptance_has_a_row_and_a_legend(make_summary: Make) -> None:
    text = render(make_summary(), RUN)
    for name in LEGEND:
        assert f"| {name} | " in text
        assert f"* `{name}`: " in text
    assert "| 0.80 0.80 0.80 - / 0.80 0.80 0.80 - |" in text


def test_all_metrics_get_a_table_when_there_are_several(make_row: Make, make_summary: Make) -> None:
    rows = [make_row("ars", 0), make_row(metrics={"pass@1": 0.05, "pass@10": None})]
    text = render(make_summary(*rows), {})
    assert "### All metrics" in text
    assert "| SpS (K=4) | nucleus | - | 5.0% | - |" in text


def test_the_environment_is_flat_escaped_and_without_unknowns(make_summary: Make) -> None:
    text = render(make_summary(), RUN)
    assert "| cpu.model | a \\| b |" in text
    assert "| libraries.torch | 2.13.0 |" in text
    assert "libraries.datasets" not in text


def test_warnings_stand_among_the_caveats(make_summary: Make) -> None:
    text = render(make_summary(warnings=["Only <5> prompts."]), {})
    assert "* Only &lt;5&gt; prompts." in text
    assert "## Environment" not in text
    assert "## Reproduce" not in text


def test_a_failed_arm_and_an_empty_run_still_give_a_report(
    make_row: Make, make_summary: Make, failed_row: dict[str, Any]
) -> None:
    text = render(make_summary(make_row("ars", 0), failed_row), {})
    assert "| SpS (K=11) | nucleus | - | failed | - | - |" in text
    assert "None" not in text
    empty = make_summary()
    empty["rows"] = []
    assert "Nothing was measured." in render(empty, {})


def test_hostile_text_stays_text(make_row: Make, make_summary: Make) -> None:
    evil = "<script>alert(1)</script>|\n# x"
    rows = [make_row("ars", 0, evil), make_row("sps", 4, evil)]
    text = render(make_summary(*rows, task_label=evil, pair=evil, synthetic=False), {"command": [evil]})
    body, _, command = text.partition("## Reproduce")
    assert "<script>" not in body
    assert "\n# x" not in body
    assert command.strip().startswith("```")


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("/home/me/.venv/bin/spsbench run xsum --tag 'a b'", "spsbench run xsum --tag 'a b'"),
        ("/x/spsbench/__main__.py run xsum", "spsbench run xsum"),
        ("python compare.py", "python compare.py"),
        (["/x/bin/spsbench", "run"], "spsbench run"),
    ],
)
def test_the_command_can_be_typed_elsewhere(recorded: object, shown: str, make_summary: Make) -> None:
    command = render(make_summary(), {"environment": {"command": recorded}}).partition("## Reproduce")[2]
    assert command.strip() == f"```\n{shown}\n```"


def test_a_run_without_intervals_explains_none(make_summary: Make, make_row: Make) -> None:
    bare = {"speedup": {"ratio": 1.9, "low": None, "high": None}}
    assert "The speedup's 95% interval" in render(make_summary(), {})
    assert "The speedup's 95% interval" not in render(make_summary(make_row("ars", 0), make_row(**bare)), {})

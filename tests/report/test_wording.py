"""Numbers and names as readers meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spsbench.report import results, wording
from spsbench.report.messages.audits import AuditProgress
from spsbench.report.wording import escape, fence

Make = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("value", "text"), [(0.8421, "0.842"), (7.518, "7.52"), (14.12, "14.1"), (231.4, "231"), (None, "-")]
)
def test_milliseconds_keep_three_digits(value: float | None, text: str) -> None:
    assert wording.milliseconds(value) == text


def test_what_rounds_to_nothing_has_no_sign() -> None:
    """An audit that knows nothing yet stood at 10^-0.0."""
    assert [wording.number(value, 1) for value in (-0.04, -0.06, 0.04, None)] == ["0.0", "-0.1", "0.0", "-"]
    evidence: Any = {"verdict": "ok", "log10_e_value": -0.04}
    assert "e-value 10^0.0 (alarm" in str(AuditProgress("K=4", 1, 9, evidence, None))


def test_a_law_that_is_not_the_tasks_stands_in_the_title() -> None:
    law = "T=0.5, min-p 0.1 (vllm)"
    assert wording.title({"task_label": "mini", "synthetic": True, "law": law}) == f"mini (synthetic), {law}"
    assert wording.title({"task_label": "mini", "synthetic": False}) == "mini"


def test_speedup_with_and_without_an_interval() -> None:
    assert wording.speedup({"ratio": 1.918, "low": 1.85, "high": 1.991}) == "1.92x [1.85, 1.99]"
    assert wording.speedup({"ratio": 1.918, "low": None, "high": None}) == "1.92x"
    assert wording.speedup(None) == "-"


def test_only_a_measured_baseline_reads_1x(make_row: Make) -> None:
    assert wording.row_speedup(make_row("ars", 0)) == "1x"
    assert wording.row_speedup(make_row("ars", 0, sequences=0)) == "-"
    assert wording.row_speedup(make_row(baseline=None, speedup=None)) == "-"


def test_a_speedup_that_is_not_known_end_to_end_stands_in_no_other_column(make_row: Any) -> None:
    """An engine that does not tell its prefill: the speedup of decoding alone is another number."""
    row = make_row(end_to_end_speedup=None)
    for kind in ("interval", "ratio"):
        columns = {column.title: column for column in results.arm_columns([row], None, kind)}
        assert columns["end to end"].cell(row) == "-"
        assert columns["end to end"].cell(make_row("ars", 0)) == "1x"
    assert "1.71x" in columns["end to end"].cell(make_row())


def test_metrics_read_as_in_papers() -> None:
    assert wording.metric("pass@1", 0.451) == "45.1%"
    assert wording.metric("rouge2", 0.1124) == "0.112"
    assert wording.metric("pass@100", None) == "-"
    assert wording.metric_title("rougeLsum") == "ROUGE-Lsum"
    assert wording.metric_title(None) == "metric"


def test_the_headline_metric(make_row: Make, make_summary: Make) -> None:
    row = make_row(metrics={"rouge1": 0.3, "rouge2": 0.1})
    assert wording.headline_metric(make_summary(row)) == "rouge2"
    assert wording.headline_metric(make_summary(row, headline_metric="rouge1")) == "rouge1"
    assert wording.headline_metric(make_summary(make_row(metrics={"bleu": 0.3}))) == "bleu"
    assert wording.headline_metric(make_summary(make_row(metrics={}))) is None


def test_synthetic_data_is_always_called_so(make_summary: Make) -> None:
    assert wording.title(make_summary()) == "xsum-mini (synthetic)"
    assert wording.title(make_summary(task_label="my task")) == "my task (synthetic)"
    assert wording.title(make_summary(task_label="xsum", synthetic=False)) == "xsum"


def test_control_and_formatting_characters_are_blanked() -> None:
    assert wording.printable("a\x1b[31mb\u202ec\nd") == "a [31mb c d"


def test_markup_of_every_kind_is_escaped() -> None:
    assert escape("a|b") == "a\\|b"
    assert escape("<script>&amp;") == "&lt;script&gt;&amp;amp;"
    assert escape("[x](http://y) *b* _i_ `c` ~~s~~ $m$") == (
        "\\[x\\](http://y) \\*b\\* \\_i\\_ \\`c\\` \\~\\~s\\~\\~ \\$m\\$"
    )


def test_an_underscore_within_a_word_stays_bare() -> None:
    assert escape("alpha_beta _x_ a__b") == "alpha_beta \\_x\\_ a\\_\\_b"


def test_a_cell_is_one_line_without_control_characters() -> None:
    assert escape("a\n| b\r\n\x1b[0m") == "a \\| b \\[0m"


def test_a_fence_outlasts_the_backticks_inside() -> None:
    assert fence("run ```` x") == ["`````", "run ```` x", "`````"]
    assert fence("run") == ["```", "run", "```"]


def test_a_share_of_the_optimum_that_few_prompts_leave_open_has_no_upper_number() -> None:
    found = {"ratio": 2.957, "low": 0.0004, "high": 1_109_309.7}
    assert wording.share_of_optimum({"share_of_optimum": found}) == "295.7% [0.0, >1000]"
    assert wording.share_of_optimum({"share_of_optimum": found | {"high": 9.999}}) == "295.7% [0.0, 999.9]"

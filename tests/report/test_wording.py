"""Numbers and names as readers meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spsbench.report import wording

Make = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("value", "text"), [(0.8421, "0.842"), (7.518, "7.52"), (14.12, "14.1"), (231.4, "231"), (None, "-")]
)
def test_milliseconds_keep_three_digits(value: float | None, text: str) -> None:
    assert wording.milliseconds(value) == text


def test_speedup_with_and_without_an_interval() -> None:
    assert wording.speedup({"ratio": 1.918, "low": 1.85, "high": 1.991}) == "1.92x [1.85, 1.99]"
    assert wording.speedup({"ratio": 1.918, "low": None, "high": None}) == "1.92x"
    assert wording.speedup(None) == "-"


def test_only_a_measured_baseline_reads_1x(make_row: Make) -> None:
    assert wording.row_speedup(make_row("ars", 0)) == "1x"
    assert wording.row_speedup(make_row("ars", 0, sequences=0)) == "-"
    assert wording.row_speedup(make_row(baseline=None, speedup=None)) == "-"


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


def test_the_sentence_says_how_fast_and_whether_that_is_clear(make_row: Make) -> None:
    ars = make_row("ars", 0)
    assert wording.sentences([ars, make_row()]) == ["SpS (K=4) ran 1.92x [1.85, 1.99] as fast as ArS."]
    unclear = make_row(speedup={"ratio": 1.02, "low": 0.97, "high": 1.06})
    assert wording.sentences([ars, unclear])[0].endswith("as fast as ArS: no clear difference.")
    slower = make_row(speedup={"ratio": 0.85, "low": 0.8, "high": 0.9})
    assert wording.sentences([ars, slower])[0].endswith("as fast as ArS: slower.")


def test_several_samplings_are_named_and_many_arms_told_by_their_fastest(make_row: Make) -> None:
    rows = [make_row("ars", 0), make_row("ars", 0, "greedy"), make_row(), make_row("sps", 4, "greedy")]
    assert [text.split(" under ")[1] for text in wording.sentences(rows)] == [
        "nucleus sampling.",
        "greedy sampling.",
    ]
    sweep = [
        make_row("sps", k, speedup={"ratio": 1 + k % 4 / 4, "low": None, "high": None}) for k in range(1, 8)
    ]
    assert wording.sentences([rows[0], *sweep]) == ["SpS (K=3) ran 1.75x as fast as ArS."]


def test_synthetic_data_is_always_called_so(make_summary: Make) -> None:
    assert wording.title(make_summary()) == "xsum-mini (synthetic)"
    assert wording.title(make_summary(task_label="my task")) == "my task (synthetic)"
    assert wording.title(make_summary(task_label="xsum", synthetic=False)) == "xsum"


def test_control_and_formatting_characters_are_blanked() -> None:
    assert wording.printable("a\x1b[31mb\u202ec\nd") == "a [31mb c d"

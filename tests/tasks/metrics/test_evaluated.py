"""Metrics of the evaluate library by name, from local scripts; no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.tasks.metrics.kind import corpus_figure, scores
from spsbench.tasks.metrics.registry import metric_kinds

Script = Callable[[str, str], Path]

OUTPUTS, REFERENCES = ["a b", "c d e", ""], ["a x", "x", "y z"]


def test_a_mean_over_outputs_gives_each_its_score(metric_script: Script) -> None:
    path = metric_script("agreement_mean", '{"agreement_mean": sum(same) / len(same)}')
    (kind,) = metric_kinds([f"evaluate:{path}"])
    assert (kind.name, kind.corpus) == ("agreement_mean", None)
    found = scores([kind], [""] * 3, OUTPUTS, REFERENCES)
    assert [one["agreement_mean"] for one in found] == [1.0, 0.0, 0.0]


def test_one_number_for_each_output_is_its_score(metric_script: Script) -> None:
    path = metric_script("agreement_list", '{"each": same}')
    (kind,) = metric_kinds([f"evaluate:{path}"])
    found = scores([kind], [""] * 3, OUTPUTS, REFERENCES)
    assert [one["agreement_list:each"] for one in found] == [1.0, 0.0, 0.0]


def test_any_other_figure_is_that_of_all_outputs_together(metric_script: Script) -> None:
    path = metric_script("length", '{"score": lengths, "same": same[0]}')
    (kind,) = metric_kinds([f"evaluate:{path}"])
    assert (kind.name, kind.score) == ("length", None)
    assert corpus_figure(kind, [""] * 3, OUTPUTS, REFERENCES) == pytest.approx(8 / 7)
    record = kind.record()
    assert record["columns"] == ["length:outputs"]
    assert record["signature"].startswith("evaluate:")
    assert "|metric:length.py|key:score|sha256:" in record["signature"]


def test_a_key_says_which_of_several_answers_counts(metric_script: Script) -> None:
    path = metric_script("several", '{"first": same[0], "ratio": lengths, "text": "no number"}')
    (kind,) = metric_kinds([f"evaluate:{path.name}:ratio"], folder=path.parent)
    assert (kind.name, kind.corpus is None) == ("several:ratio", False)
    for name, told in (("", "does not say which of its numbers counts"), (":lenght", "has no 'lenght'")):
        with pytest.raises(UsageError, match=f"{told}: it has first, ratio") as caught:
            metric_kinds([f"evaluate:{path}{name}"], "task.yaml: metrics")
        assert str(caught.value).startswith("task.yaml: metrics")


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        ('{"text": "no number"}', UsageError, "it has no number"),
        ("1 / 0", UsageError, "does not score texts against references (ZeroDivisionError"),
        ("lengths", UsageError, "compute answered float, not a dictionary"),
        ("(", UnavailableError, "cannot be loaded (SyntaxError"),
    ],
)
def test_a_script_that_is_no_metric_of_texts_is_refused(
    metric_script: Script, answer: str, error: type[SpsbenchError], told: str
) -> None:
    path = metric_script(f"broken{len(answer)}", answer)
    with pytest.raises(error) as caught:
        metric_kinds([f"evaluate:{path}"])
    assert told in str(caught.value)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"nothing\.py is not there"):
        metric_kinds([f"evaluate:{tmp_path}/nothing.py"])


def test_without_the_hub_a_name_says_what_is_missing(
    metric_script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    import evaluate

    def offline(*_: object, **__: object) -> None:
        raise FileNotFoundError("Couldn't find a module script")

    monkeypatch.setattr(evaluate, "load", offline)
    with pytest.raises(UnavailableError) as caught:
        metric_kinds(["evaluate:sacrebleu"], "task.yaml: metrics")
    assert caught.value.exit_code == 3
    assert "'sacrebleu' of the evaluate library cannot be loaded (its script is not on this" in str(
        caught.value
    )
    assert "evaluate:path/metric.py" in str(caught.value)

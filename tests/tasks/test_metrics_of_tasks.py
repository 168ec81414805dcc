"""The metrics that a task names: found, unique, and checked in what they answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.paths import data_dir
from spsbench.base.records import Prompt
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.metrics.kind import MetricFault, MetricKind, Sums, corpus_figure, scores
from spsbench.tasks.metrics.registry import METRICS, metric_kinds

FILE = (
    "from spsbench import MetricKind\n\n"
    "KIND = MetricKind('length', 'Characters.', lambda p, o, r: [len(x) for x in o], margin=2)\nNUMBER = 3\n"
)


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[..., str]:
    """A copy of a shipped task with changes, beside a file with a metric."""

    def write(task: str = "xsum", **changes: object) -> str:
        content = yaml.safe_load((data_dir("tasks") / f"{task}.yaml").read_text())
        path = tmp_path / "task.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        (tmp_path / "mine.py").write_text(FILE)
        return str(path)

    return write


def test_a_yaml_names_its_metrics_and_finds_files_beside_it(spec_file: Callable[..., str]) -> None:
    task = load_task(spec_file(metrics=["exact_match", "mine.py:KIND"], headline="length"))
    assert [kind.name for kind in task.metrics] == ["exact_match", "length"]
    assert task.headline == "length"
    prompt = Prompt("1", "Q", (1,), "yes")
    assert task.score([prompt, prompt], [" yes\n", "no"]) == [
        {"exact_match": 1.0, "length": 5.0},
        {"exact_match": 0.0, "length": 2.0},
    ]


def test_a_yaml_that_names_none_has_those_of_its_kind(spec_file: Callable[..., str]) -> None:
    assert [kind.name for kind in load_task("xsum").metrics] == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    assert load_task("humaneval").metrics == ()
    task = load_task(spec_file("humaneval", metrics=["mine.py:KIND"]))
    assert (task.headline, [kind.name for kind in task.metrics]) == ("pass@1", ["length"])


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"headline": "pass@1"}, UsageError, "headline is pass@1, not one of rouge1"),
        ({"metrics": ["exact_match"]}, UsageError, "headline is rouge2, not one of exact_match"),
        ({"metrics": ["rogue2"]}, UsageError, "Did you mean rouge2?"),
        ({"metrics": ["rouge2", "rouge2"]}, UsageError, "the name 'rouge2' is taken"),
        ({"metrics": ["mine.py:NUMBER"]}, UsageError, "is int, not MetricKind"),
        ({"metrics": ["mine.py:NOTHING"]}, UsageError, "has no NOTHING"),
        ({"metrics": ["yours.py:KIND"]}, UnavailableError, "yours.py does not exist"),
        ({"metrics": [3]}, UsageError, "3 is not valid"),
    ],
)
def test_a_wrong_metric_is_refused(
    spec_file: Callable[..., str], changes: dict[str, object], error: type[Exception], told: str
) -> None:
    path = spec_file(**changes)
    with pytest.raises(error) as caught:
        load_task(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize("name", ["passed", "pass@1"])
def test_the_scores_of_programs_are_the_tasks_own(name: str) -> None:
    kind = MetricKind(name, "Mine.", lambda prompts, outputs, references: [1.0])
    with pytest.raises(UsageError, match=f"'{name}' is taken"):
        metric_kinds([kind])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda p, o, r: [1.0], "gave 1 scores for 2 outputs"),
        (lambda p, o, r: [1.0, float("nan")], "gave nan for a score"),
        (lambda p, o, r: [1.0, "2"], "gave '2' for a score"),
        (lambda p, o, r: [1 / 0 for _ in o], "raised ZeroDivisionError: division by zero"),
        (lambda p, o, r: None, "raised TypeError"),
    ],
)
def test_a_metric_that_answers_wrongly_is_named(answer: Callable[..., list[float]], told: str) -> None:
    with pytest.raises(MetricFault, match="the metric mine") as caught:
        scores([MetricKind("mine", "Mine.", answer)], ["q", "q"], ["a", "b"], ["a", "b"])
    assert told in str(caught.value)
    assert "spsbench score RUN" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda p, o, r: [[1.0, 2.0]], "gave 1 scores for 2 outputs"),
        (lambda p, o, r: [[1.0], [1.0]], "gave 1 numbers for 2 columns"),
        (lambda p, o, r: [[1.0, 2.0], [1.0, float("inf")]], "gave inf for a score"),
        (lambda p, o, r: [1.0, 2.0], "raised TypeError"),
    ],
)
def test_counts_of_a_corpus_are_checked_as_scores_are(
    answer: Callable[..., list[list[float]]], told: str
) -> None:
    kind = MetricKind("mine", "Mine.", sums=Sums(("hits", "all"), answer, lambda sums: sums[0] / sums[1]))
    with pytest.raises(MetricFault, match=told):
        scores([kind], ["q", "q"], ["a", "b"], ["a", "b"])


def test_a_metric_is_a_mean_or_a_figure_of_a_corpus() -> None:
    each: Callable[..., list[float]] = lambda p, o, r: [1.0 for _ in o]  # noqa: E731
    with pytest.raises(ValueError, match="mine needs exactly one of score, sums and corpus"):
        MetricKind("mine", "Mine.")
    with pytest.raises(ValueError, match="exactly one"):
        MetricKind("mine", "Mine.", each, corpus=lambda p, o, r: 1.0)
    whole = MetricKind("mine", "Mine.", corpus=lambda p, o, r: float("nan"))
    assert scores([whole], ["q"], ["a"], ["a"]) == [{"mine:outputs": 1.0}]
    with pytest.raises(MetricFault, match="the metric mine gave nan for a score"):
        corpus_figure(whole, ["q"], ["a"], ["a"])


def test_every_metric_of_ours_is_best_on_the_reference_itself() -> None:
    kinds = [kind for kind in METRICS.values() if kind.score is not None]
    same = "the cat has \\boxed{12}"  # which each of them reads
    found = scores(kinds, ["q", "q"], [same, "a dog ran"], [same] * 2)
    assert set(found[0].values()) == {1.0}
    assert all(value < 1 for value in found[1].values())

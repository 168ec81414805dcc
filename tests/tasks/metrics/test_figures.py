"""ROUGE values that can be counted by hand."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

import spsbench
from spsbench.tasks.metrics.builtin import ROUGE_TYPES, mean_rouge, pass_at_k, pass_at_k_per_problem, rouge


def test_counted_by_hand() -> None:
    # 5 words each; shared: the, cat, on, mat (4) and the bigrams "the cat", "on mat" (2 of 4).
    scores = rouge("the cat slept on mat", "the cat sat on mat")
    assert scores["rouge1"] == pytest.approx(4 / 5)
    assert scores["rouge2"] == pytest.approx(2 / 4)
    assert scores["rougeL"] == pytest.approx(4 / 5)


def test_words_are_stemmed() -> None:
    assert rouge("mayors resigned", "mayor resigns") == dict.fromkeys(ROUGE_TYPES, 1.0)


def test_lsum_takes_lines_for_sentences() -> None:
    scores = rouge("b b b\na a a", "a a a\nb b b")
    assert scores["rougeLsum"] == pytest.approx(1.0)
    assert scores["rougeL"] == pytest.approx(0.5)


def test_empty_prediction_scores_zero() -> None:
    assert rouge("", "a word") == dict.fromkeys(ROUGE_TYPES, 0.0)


def test_mean_is_plain() -> None:
    low, high = rouge("x", "y"), rouge("y", "y")
    assert mean_rouge([low, high, high])["rouge1"] == pytest.approx(2 / 3)


def test_no_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_rouge([])


PREDICTIONS = ["the mayor opened a school", "", "rain fell\non the town"]
REFERENCES = ["a mayor has opened the school", "some words", "on the town\nrain fell"]


@pytest.fixture(scope="module")
def computed() -> dict[str, object]:
    from spsbench.tasks.metrics.rouge_metric import Rouge

    answer: dict[str, object] = Rouge().compute(predictions=PREDICTIONS, references=REFERENCES)
    return answer


def test_agrees_with_the_function(computed: dict[str, object]) -> None:
    values = [rouge(p, r) for p, r in zip(PREDICTIONS, REFERENCES, strict=True)]
    assert {name: computed[name] for name in ROUGE_TYPES} == pytest.approx(mean_rouge(values))


def test_keeps_values_per_example(computed: dict[str, object]) -> None:
    assert computed["rouge2_per_example"] == [
        rouge(p, r)["rouge2"] for p, r in zip(PREDICTIONS, REFERENCES, strict=True)
    ]


def test_the_fast_path_does_not_import_evaluate() -> None:
    program = (
        "import sys; from spsbench.tasks.metrics.builtin import rouge; rouge('a', 'a');"
        "sys.exit('evaluate' in sys.modules or 'datasets' in sys.modules)"
    )
    root = Path(spsbench.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0


@pytest.mark.parametrize(("n", "c", "k"), [(5, 0, 2), (5, 1, 2), (6, 3, 3), (4, 4, 1), (10, 2, 10)])
def test_equals_the_share_of_subsets_with_a_passing_sample(n: int, c: int, k: int) -> None:
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k_per_problem([n], [c], [k]) == {f"pass@{k}": [pytest.approx(share)]}


def test_is_none_where_samples_are_too_few() -> None:
    assert pass_at_k([10, 10], [5, 0]) == {"pass@1": pytest.approx(0.25), "pass@10": 0.5, "pass@100": None}
    assert pass_at_k_per_problem([1, 10], [1, 1])["pass@10"] == [None, 1.0]
    assert pass_at_k([1, 10], [1, 1])["pass@10"] is None


@pytest.mark.parametrize(
    ("samples", "passed"), [([], []), ([3], [4]), ([3], [-1]), ([0], [0]), ([1, 1], [1])]
)
def test_impossible_counts_are_refused(samples: list[int], passed: list[int]) -> None:
    with pytest.raises(ValueError):
        pass_at_k(samples, passed)

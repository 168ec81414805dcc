"""ROUGE values that can be counted by hand."""

from __future__ import annotations

import pytest

from spsbench.tasks.metrics.builtin import ROUGE_TYPES, mean_rouge, rouge


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

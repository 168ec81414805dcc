"""What any test finds of a rare fault, held against a law small enough to be written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from benchmarks.rare_oracle import from_each_token, most_found, parted, replaced, some

Text = tuple[int, ...]

STOP, LONGEST = 2, 4
ROWS = np.array([[0.5, 0.3, 0.2], [0.15, 0.6, 0.25], [0.4, 0.35, 0.25]])
"""[last token, next]; the prompt ends with token 2."""


def _texts() -> Iterator[Text]:
    for length in range(1, LONGEST + 1):
        for text in product(range(3), repeat=length):
            if STOP not in text[:-1] and (text[-1] == STOP or length == LONGEST):
                yield text


def _rows(text: Text) -> np.ndarray:
    return np.asarray(ROWS[[STOP, *text[:-1]]])


def _stale(text: Text) -> np.ndarray:
    return np.asarray(ROWS[[STOP, STOP, *text[:-2]][: len(text)]])


def _chance(text: Text, rows: np.ndarray) -> float:
    return math.prod(float(row[token]) for row, token in zip(rows, text, strict=True))


RIGHT = {text: _chance(text, _rows(text)) for text in _texts()}


def _wrong(first: int) -> dict[Text, float]:
    """The law of requests that go wrong at one of four tokens and get there, written by hand."""
    law = dict.fromkeys(RIGHT, 0.0)
    for text in law:
        for start in range(first, len(text)):  # one that ends before has not gone wrong
            law[text] += _chance(text, np.vstack([_rows(text)[:start], _stale(text)[start:]]))
    return {text: chance / sum(law.values()) for text, chance in law.items()}


def _ratio(text: Text, first: int, tokens: float) -> float:
    every, ids = np.arange(len(text)), list(text)
    rests = from_each_token(_stale(text)[every, ids], _rows(text)[every, ids])
    return math.exp(parted(rests, first, tokens))


@pytest.mark.parametrize("first", [0, 1])
def test_the_ratio_is_that_of_the_laws(first: int) -> None:
    assert sum(RIGHT.values()) == pytest.approx(1.0)
    tokens = sum(chance * len(text) for text, chance in RIGHT.items()) - first
    wrong = _wrong(first)
    for text, chance in RIGHT.items():
        assert _ratio(text, first, tokens) == pytest.approx(wrong[text] / chance)
    mean = sum(chance * _ratio(text, first, tokens) for text, chance in RIGHT.items())
    assert mean == pytest.approx(1.0)


def test_a_ratio_with_another_length_is_of_no_law() -> None:
    """The control: what a right engine wins on average is not 1."""
    mean = sum(chance * _ratio(text, 1, LONGEST - 1) for text, chance in RIGHT.items())
    assert mean < 0.9


@pytest.mark.parametrize("share", [0.003, 0.4])
def test_the_ratio_of_replaced_tokens_is_that_of_the_laws(share: float) -> None:
    law = (1 - share) * ROWS
    law[np.arange(3), np.argsort(ROWS, axis=-1)[:, -2]] += share
    for text, chance in RIGHT.items():
        log_ratio, _ = replaced(_rows(text), np.array(text), share)
        of_law = _chance(text, law[[STOP, *text[:-1]]])
        assert math.exp(log_ratio) == pytest.approx(of_law / chance)
    _, expected = replaced(ROWS[:1], np.array([0]), share)
    assert expected == pytest.approx(float((law[0] * np.log(law[0] / ROWS[0])).sum()))


def test_a_request_that_may_be_right_wins_less() -> None:
    shares = some(np.array([-np.inf, 0.0, math.log(50)]), 0.01)
    assert np.exp(shares) == pytest.approx([0.99, 1.0, 1.49])


@pytest.mark.parametrize(("level", "found"), [(0.01, 0.2), (0.055, 0.35), (0.1, 0.5), (0.001, 0.02)])
def test_the_most_powerful_test_accuses_by_the_ratio(level: float, found: float) -> None:
    """Three outcomes, right with .9, .09 and .01, wrong with .5, .3 and .2: by hand."""
    right, wrong = np.array([0.9, 0.09, 0.01]), np.array([0.5, 0.3, 0.2])
    totals = np.repeat(np.log(wrong / right), (1000 * wrong).round().astype(int))
    assert most_found(totals, level) == pytest.approx(found, abs=0.0015)


def test_no_bet_finds_more_than_the_most_powerful_test() -> None:
    """Requests of one token, wrong in one of ten: every other threshold on the way included."""
    rng = np.random.default_rng(0)
    right, wrong = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
    law, level, requests, audits = 0.9 * right + 0.1 * wrong, 0.01, 60, 4000
    tokens = rng.choice(3, (audits, requests), p=law)
    totals = np.log(law / right)[tokens].sum(-1)
    at_most = most_found(totals, level)
    for bet in (law, 0.7 * right + 0.3 * wrong, 0.95 * right + 0.05 * wrong):
        spoken = (np.log(bet / right)[tokens].cumsum(-1) >= -math.log(level)).any(-1).mean()
        assert spoken <= at_most + 0.01
    assert at_most > 0.01

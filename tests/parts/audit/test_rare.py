"""Rare faults: right engines pay little, one wrong request in hundreds is found, and what is said is true."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import rare_oracle
from benchmarks.audit_power import ALARM
from benchmarks.rare_power import (
    KINDS,
    LAWS,
    NEEDED,
    Oracle,
    Reader,
    World,
    audits,
    figure,
    keep,
    stale,
    tables,
    written,
    wrong_texts,
)
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.messages.faults import REQUESTS, TOKENS
from spsbench.parts.audit.rare import Neighbour, OtherRows, Rare, added_by, from_some_token_on

T1 = LAWS["T=1"]


@pytest.fixture(scope="module")
def world() -> World:
    return tables(0, T1)


@pytest.fixture(scope="module")
def reader(world: World) -> Reader:
    known = Reader(world)
    for text in written(world, 120, np.random.default_rng(1)):
        known.learn(text)
    return known


@pytest.mark.parametrize("cut", [False, True])
def test_no_bet_on_a_text_wins_on_average(cut: bool) -> None:
    """Exactly, over all texts of three tokens: rows that follow from the text, laws that know other texts."""
    rng = np.random.default_rng(2)
    laws = rng.dirichlet(np.ones(4), size=(4, 4))  # by the last token and the one before
    if cut:
        laws[laws < 0.2] = 0.0
        laws /= laws.sum(-1, keepdims=True)
    usual = rng.dirichlet(np.ones(4))
    neighbour = Neighbour(rng.dirichlet(np.ones(4), 2), np.array([2, 1]))
    means: np.ndarray = np.zeros(1)
    for text in product(range(4), repeat=3):
        rows = np.stack([laws[0, 0], laws[0, text[0]], laws[text[0], text[1]]])
        chance = math.prod(rows[n, token] for n, token in enumerate(text))
        if chance:
            means = means + chance * np.exp(added_by(OtherRows(rows, usual, neighbour), np.array(text)))
    assert (means <= 1 + 1e-9).all()
    assert (means > 0.95).all()


def test_a_law_that_is_none_wins_on_average() -> None:
    """The control: ratios of mean 1.2 in place of 1."""
    q, other = np.array([0.7, 0.3]), np.array([0.5, 0.5])
    texts = [*product(range(2), repeat=4)]

    def mean(factor: float) -> float:
        ratios = [factor * np.array([other[x] / q[x] for x in text]) for text in texts]
        chances = [math.prod(q[x] for x in text) for text in texts]
        return sum(
            chance * float(from_some_token_on(ratio)) for chance, ratio in zip(chances, ratios, strict=True)
        )

    assert mean(1.0) == pytest.approx(1.0)
    assert mean(1.2) > 1.05


@pytest.mark.parametrize("kind", ["stale_row", "another_request", "random_token", "goes_on"])
def test_one_wrong_request_in_fifty_is_found_and_named(kind: str, world: World) -> None:
    rng = np.random.default_rng(3)
    right = written(world, 150, rng)
    wrong = dict(wrong_texts(world, right, 3, rng)[kind])
    reader, control = Reader(world), Reader(world)
    for number, text in enumerate(right):
        reader.learn(wrong.get(number, text))
        control.learn(text)
    assert reader.rare.log_e > NEEDED
    assert reader.rare.leading()[0] == REQUESTS
    assert control.rare.log_e < math.log(20)


def test_the_second_best_is_found_where_the_target_is_sure() -> None:
    """Of sure rows the second best is nearly impossible; of others one in 300 says nothing."""
    rng, rare, control = np.random.default_rng(4), Rare(), Rare()
    row = np.array([0.999, 0.0008, 0.0001, 0.0001])
    for number in range(60):
        tokens = rng.choice(4, 50, p=row)
        others = OtherRows(np.tile(row, (50, 1)), None)
        control.add(others, tokens)
        tokens = tokens.copy()
        tokens[7] = 1 if number % 4 == 0 else tokens[7]
        rare.add(others, tokens)
    assert rare.log_e > NEEDED
    assert rare.leading() == (TOKENS, "writes the second most probable token")
    assert control.log_e < math.log(20)


def test_the_shares_that_are_named_are_found(world: World, reader: Reader) -> None:
    """By requests that are wrong from the moment they part, and not at a third of the share."""
    rng = np.random.default_rng(5)
    texts = reader._right
    right = np.stack([reader.of(text) for text in texts])
    shares = reader.shares()
    for kind in ("another_request", "stale_row", "random_token"):
        wrong = np.stack(
            [reader.of(text, texts[n - 1]) for n, text in wrong_texts(world, texts, 40, rng)[kind]]
        )
        named = shares[kind]
        assert named is not None
        assert named > 1 / len(texts)
        found = [(audits(right, wrong, share, 120, 300, rng) > 0).mean() for share in (named, named / 3)]
        assert found[0] > 0.85
        assert found[1] < 0.85


def test_a_stale_request_is_the_right_one_up_to_its_token(world: World) -> None:
    rng = np.random.default_rng(7)
    right = written(world, 40, rng)
    begun = [(text, len(text[1]) // 2) for text in right if len(text[1]) > 1]
    for (text, start), (prompt, tokens) in zip(begun, stale(world, begun, rng), strict=True):
        assert prompt == text[0]
        assert tokens[:start] == text[1][:start]
        assert len(tokens) > start


def test_the_oracle_knows_what_is_planted_and_accuses_no_right_engine(world: World) -> None:
    """Its bet on wrong requests wins, and costs right ones as much as their share on average."""
    rng = np.random.default_rng(8)
    right = written(world, 120, rng)
    oracle = Oracle(world, right)
    wrong = wrong_texts(world, right, 60, rng)
    for kind in ("stale_row", "another_request", "random_token"):
        of_right = rare_oracle.some(np.array([oracle.of(kind, *each) for each in enumerate(right)]), 0.01)
        of_wrong = rare_oracle.some(np.array([oracle.of(kind, *each) for each in wrong[kind]]), 0.01)
        alarms = audits(of_right[:, None], of_right[:, None], 0.0, 400, 200, rng, ALARM)
        found = audits(of_right[:, None], of_wrong[:, None], 0.02, 400, 200, rng, ALARM)
        assert not alarms.any()
        assert (found > 0).mean() > 0.9


def test_second_bests_that_are_drawn_again_win_what_is_expected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.rare_power.REPLACED", 0.1)
    rng = np.random.default_rng(9)
    read = [each for text in written(world, 60, rng) for each in Reader(world).replaced(text, rng)]
    _, ratios, expected = zip(*read, strict=True)
    error = np.std(ratios) / math.sqrt(len(ratios))
    assert abs(np.mean(ratios) - np.mean(expected)) < 4 * error
    assert np.mean(expected) > 8 * error  # what right texts lose would not pass


def test_few_texts_name_no_share(world: World) -> None:
    reader = Reader(world)
    for text in written(world, 19, np.random.default_rng(6)):
        reader.learn(text)
    assert reader.shares() == {}


def test_rare_bets_have_their_part_of_all(world: World) -> None:
    """What they win is in the e-value of all bets, and named if it is most of it."""
    bets = Bets([47], 4)
    before = bets.log_e
    assert before == pytest.approx(0.0)
    bets.rare._logs[:] = 60.0
    assert bets.log_e == pytest.approx(60.0 + math.log(0.2), abs=1e-6)
    assert bets.leading()[0] == REQUESTS


def _curve(target: str, found: float) -> dict[str, Any]:
    points = [{"share": share, "found": found, "low": 0.0, "high": 1.0} for share in (0.001, 0.03)]
    return {"target": target, "wrong": "stale_row", "requests": 400, "points": points}


def test_curves_are_stored_in_place_of_older_ones_and_drawn_by_law(tmp_path: Path) -> None:
    path = tmp_path / "rare.json"
    keep(path, [_curve("embedded, T=1", 0.1), _curve("embedded, T=0.7", 0.2)])
    keep(path, [_curve("embedded, T=1", 0.3)])
    stored = json.loads(path.read_text())
    assert {each["target"]: each["points"][0]["found"] for each in stored} == {
        "embedded, T=1": 0.3,
        "embedded, T=0.7": 0.2,
    }
    plate = figure([*stored, _curve("smollm2, T=1", 0.5)], "T=1")
    assert plate.svg.count("wrong requests (%)") == 2
    assert all(
        said in plate.svg
        for said in ("embedded pair (synthetic)", "SmolLM2", *KINDS.values())
        if "'" not in said
    )

"""Bets on reported drafts: fair for every right engine whose drafts vary in length, and won where what was
drawn decides that a draft stands."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.right_engines import every

from benchmarks.short_drafts import ENDS, LEFT_OUT, ROW, SAMPLING, STAYS, Rows, ShortDrafts, reading_of
from spsbench.base.protocol import Drafting
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.contexts import AtContexts, Forks, Standing
from spsbench.parts.audit.messages.faults import FIRST_DRAFTED, LEAVES_OUT_DRAWN, PICKS, WITHDRAWS
from spsbench.parts.audit.reported import _GRANTED, ReportedDrafts

Floats = NDArray[np.float64]
ALARM = math.log(1000)
AT = 0.6


def forks_of(models: tuple[Rows, Rows], drafting: Drafting | None = None) -> Forks:
    return Forks(cast(Any, models), SAMPLING, drafting)


def heard(models: tuple[Rows, Rows], engine: ShortDrafts, texts: int, known: bool = False) -> ReportedDrafts:
    """What is bet on an engine's texts of 12 tokens; ``known``: its threshold is declared."""
    found = ReportedDrafts(forks_of(models, Drafting(engine.p_min, engine.n_min) if known else None))
    for number in range(texts):
        prompt = (number % 12, 3 * number % 12)
        ids, tested, accepted = engine.generate(prompt, 12, number)
        found.add(prompt, ids, models[1].laws[[prompt[-1], *ids[:-1]]], accepted, tested, 1)
    return found


# --- the law ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_ratio_has_mean_one_under_the_row_that_is_drawn_from(top_k: int) -> None:
    """And less where the row is not cut and the alternative's is: both are right drafts."""
    for seed, last in itertools.product(range(20), range(3)):
        models = Rows.pair(seed, 6)
        p = models[1].laws[last]
        cut = np.where(p >= np.sort(p)[-(top_k or 6)], p, 0.0)
        forks = forks_of(models, Drafting(0, 0, top_k))
        standing = forks.standing((last,), p)
        ratios = np.array([standing.ratios(token, p[token]) for token in range(6)])  # [V, laws]
        possible = standing.mass > 0
        assert cut / cut.sum() @ ratios == pytest.approx(np.where(possible, 1.0, 0.0), abs=1e-12)
        assert (p @ ratios <= 1 + 1e-12).all()
        assert possible.any()


def test_a_reported_draft_of_the_alternative_has_its_law() -> None:
    """By enumeration: drafts of at least two tokens, where both their rows are sure.

    What is as improbable as one in a thousand is taken to stand."""
    for seed in range(20):
        models = Rows.pair(seed, 6)
        p = models[1].laws
        sure = p.max(1) >= AT
        for last in range(6):
            standing = forks_of(models, Drafting(AT, 2, 0)).standing((last,), p[last])
            stands = p[last] * (sure | (p[last] <= 1e-3)) * sure[last]
            ratios = np.array([standing.ratios(token, p[last, token])[0] for token in range(6)])
            if stands.sum() > 0:
                assert p[last] * ratios == pytest.approx(stands / stands.sum(), abs=1e-9)
            else:
                assert not ratios.any()


# --- whole texts, enumerated --------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [ROW, STAYS])
def test_no_stake_grows_on_average_over_all_texts_of_a_right_engine(ends: str) -> None:
    """Exactly, on tables of three tokens; the text is the target's meanwhile."""
    for seed in range(6):
        models = Rows.pair(seed, 3)
        forks, known = forks_of(models), dict[tuple[int, ...], Standing]()
        total, mean, first = 0.0, 0.0, np.zeros((3, 3))
        laws = models[0].laws, models[1].laws
        for chance, ids, accepted, drafted in every(laws, 1, 4, ends, 2, 0.5):
            found = ReportedDrafts(forks)
            found._known = known  # as long as rows are the same, so are these
            found.add((1,), ids, models[1].laws[[1, *ids[:-1]]], accepted, drafted, 0)
            total, mean = total + chance, mean + chance * math.exp(found.log_e)
            first[ids[0], ids[1]] += chance
        assert total == pytest.approx(1, abs=1e-12)
        q = models[0].laws
        assert first == pytest.approx(q[1][:, None] * q, abs=1e-12)
        assert 0.1 < mean < 1 + 1e-12


# --- engines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_withdrawn_drafts_are_found_in_whole_texts_and_named(known: bool) -> None:
    found = heard(models := Rows.pair(5), ShortDrafts(models, p_min=AT, n_min=2), 60, known)
    assert found.log_e > ALARM
    where, what = found.leading()
    assert where == FIRST_DRAFTED
    assert what.startswith(f"{WITHDRAWS}: after it nothing in ")
    assert what.endswith(" reaches 0.6")


@pytest.mark.parametrize(("n_min", "ends"), [(0, ROW), (1, ROW), (0, STAYS)])
def test_drafts_that_end_early_and_stand_are_right(n_min: int, ends: str) -> None:
    found = heard(models := Rows.pair(5), ShortDrafts(models, p_min=AT, n_min=n_min, ends=ends), 60, True)
    assert found.log_e < 0
    assert found.drafts > 20


def test_where_counts_do_not_add_up_nothing_is_bet_on() -> None:
    models = Rows.pair(5)
    found = ReportedDrafts(forks_of(models))
    rows = models[1].laws[[0, 1, 2]]
    found.add((0,), [1, 2, 3], rows, [0], [[1]], 0)
    found.add((0,), [1, 2, 3], rows, [0, 0, 0], [[1], [2], [3]], 0)
    assert (found.log_e, found.drafts) == (pytest.approx(0), 0)


@pytest.mark.thorough
def test_a_thousand_right_engines_raise_no_alarm() -> None:
    """Of these bets; of all that an audit looks at: ``python -m benchmarks.short_drafts``."""
    highest, drafts = -math.inf, 0
    for seed in range(1000):
        dice, models = random.Random(seed), Rows.pair(seed)
        at = dice.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        engine = ShortDrafts(models, dice.randint(1, 6), at, dice.randint(0, 1), (ROW, STAYS)[seed % 2])
        found = heard(models, engine, 6, dice.random() < 0.5)
        highest, drafts = max(highest, found.log_e), drafts + found.drafts
    assert highest < ALARM
    assert drafts > 3000


# --- a stop that reads the drawn token ----------------------------------------------------------------


def named(models: tuple[Rows, Rows], engine: ShortDrafts, texts: int, *, told: bool = True) -> Bets:
    found = Bets([], engine.k, modified=True)
    for number in range(texts):
        prompt = (number % 12, 3 * number % 12)
        ids, tested, accepted = engine.generate(prompt, 12, number)
        drafted = (accepted, 1, tested) if told else ()
        found.add(prompt, ids, reading_of(models, prompt, ids), *drafted)
    return found


@pytest.mark.parametrize(("at", "told", "texts"), [(0.3, True, 15), (0.6, True, 15), (0.4, False, 160)])
def test_a_drawn_token_that_is_left_out_is_named(at: float, told: bool, texts: int) -> None:
    """With drafted tokens reported, and from texts alone."""
    models = Rows.pair(5)
    found = named(models, ShortDrafts(models, p_min=at, ends=LEFT_OUT), texts, told=told)
    assert found.log_e > ALARM
    where, what = found.leading()
    assert what == LEAVES_OUT_DRAWN
    assert where == PICKS or not told


@pytest.mark.parametrize("ends", [ROW, STAYS])
def test_one_that_stays_is_right(ends: str) -> None:
    assert LEFT_OUT in ENDS
    models = Rows.pair(5)
    assert named(models, ShortDrafts(models, p_min=0.4, ends=ends), 15).log_e < 0


# --- what reported drafts rule out --------------------------------------------------------------------


def test_drafts_of_an_engine_that_withdraws_short_ones_rarely_rule_that_out() -> None:
    """Exactly: the mean of one over a draft's ratio is at most 1 there, rounding granted."""
    for seed, last in itertools.product(range(20), range(3)):
        p = (models := Rows.pair(seed, 6))[1].laws[last]
        standing = forks_of(models).standing((last,), p)
        ratios = np.array([standing.ratios(token, p[token]) for token in range(6)])  # [V, laws]
        inverse = ratios / np.maximum(ratios, _GRANTED)
        assert (p @ inverse <= 1 + 1e-12).all()
    wrong = heard(models := Rows.pair(5), ShortDrafts(models, p_min=AT, n_min=2), 30)
    assert wrong.by_threshold()[AT] > 0


@pytest.mark.parametrize("known", [False, True])
def test_a_right_engine_s_drafts_rule_out_what_few_texts_cannot(known: bool) -> None:
    engine = ShortDrafts(models := Rows.pair(5), p_min=AT)
    by_drafts = heard(models, engine, 60, known).by_threshold()
    texts = AtContexts(forks_of(models, Drafting(AT) if known else None))
    assert texts.finding().unjudged
    assert texts.is_ruled_out(by_drafts)
    assert f"{AT:g}" in texts.finding(by_drafts).found
    three = AtContexts(forks_of(models, Drafting(AT, 3)))
    assert not three.is_ruled_out(by_drafts)  # they were held against another law

"""Contexts that are chosen for withdrawn drafts, and what is said at them."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.short_drafts import Rows, ShortDrafts
from spsbench.base.records import SamplingParams
from spsbench.parts.audit.contexts import WITHDRAWS, AtContexts, Forks, choose, thresholds_of, withdrawn

AT = 0.6
ALARM = math.log(1000)


def forks_of(models: tuple[Rows, Rows], known: float | None = AT) -> Forks:
    return Forks(cast(Any, models), SamplingParams(), thresholds_of(known))


def drawn_at(models: tuple[Rows, Rows], n_min: int, draws: int, known: float | None = AT) -> AtContexts:
    """What 2 chosen contexts say of an engine with that fewest number of tokens."""
    forks = forks_of(models, known)
    prompts = [tuple(np.random.default_rng(n).integers(0, 12, 60).tolist()) for n in range(8)]
    contexts = choose(forks, prompts, [], 2)
    engine, found = ShortDrafts(models, p_min=AT, n_min=n_min), AtContexts(forks)
    for number in range(draws):
        prompt = contexts[number % 2]
        ids, _, _ = engine.generate(prompt, 6, number)
        rows = models[0].laws[[prompt[-1], *ids[:-1]]]
        found.add(prompt, ids, rows, 1)
    return found


def test_the_law_of_a_withdrawn_draft_is_that_of_the_enumeration() -> None:
    chance = np.random.default_rng(3)
    for _ in range(20):
        q, p = chance.dirichlet(np.ones(5)), chance.dirichlet(np.ones(5))
        stays = chance.random(5) < 0.5
        expected = np.zeros(5)
        for token in range(5):
            if not stays[token]:
                expected += p[token] * q
                continue
            kept = min(1.0, q[token] / p[token])
            rest = np.maximum(q - p, 0.0)
            expected[token] += p[token] * kept
            expected += p[token] * (1 - kept) * rest / rest.sum()
        assert withdrawn(q, p, stays) == pytest.approx(expected, abs=1e-14)
        assert withdrawn(q, p, np.ones(5, dtype=bool)) == pytest.approx(q, abs=1e-14)
        assert withdrawn(q, p, np.zeros(5, dtype=bool)) == pytest.approx(q, abs=1e-14)


def test_contexts_are_where_the_law_of_a_withdrawn_draft_is_another() -> None:
    forks, models = forks_of(pair := Rows.pair(5)), pair
    prompts = [tuple(np.random.default_rng(n).integers(0, 12, 60).tolist()) for n in range(8)]
    behind, at = choose(forks, prompts, [], 2)
    first = int(models[0].laws[behind[-1]].argmax())
    best = max(forks.of([token]).by_threshold([AT])[0] for token in range(12))
    assert forks.of([*behind, first]).by_threshold([AT])[0] > 0.3 * best
    assert forks.of(at).by_threshold([AT])[0] > 0.3 * best
    assert choose(forks, prompts, [], 2) == [behind, at]
    assert len(choose(forks, [(1, 2, 3, 4)], [], 2)) == 0  # too short for one


def test_no_threshold_is_left_without_a_context_for_others_that_show_more() -> None:
    forks = forks_of(Rows.pair(5), None)
    prompts = [tuple(np.random.default_rng(n).integers(0, 12, 60).tolist()) for n in range(8)]
    best = np.max([forks.of([token]).by_threshold(forks.thresholds) for token in range(12)], axis=0)
    own = choose(forks, prompts, [], 6)[1::2]
    shown = np.max([forks.of(ids).by_threshold(forks.thresholds) for ids in own], axis=0)
    can_be = best > 0.02
    assert can_be.sum() > 3
    assert bool((shown[can_be] > 0.3 * best[can_be]).all())


@pytest.mark.parametrize(("known", "draws"), [(AT, 800), (None, 1000)])
def test_withdrawn_drafts_are_found_and_named(known: float | None, draws: int) -> None:
    """A context that is to show all thresholds shows each of them less."""
    found = drawn_at(Rows.pair(5), 2, draws, known)
    assert found.log_e > ALARM
    where, what = found.leading()
    assert where == "the token after the expected first one"
    assert str(what).startswith(WITHDRAWS)
    assert not found.is_ruled_out


@pytest.mark.parametrize("n_min", [0, 1])
def test_drafts_that_end_early_and_stand_are_right_and_the_fault_is_ruled_out(n_min: int) -> None:
    found = drawn_at(Rows.pair(5), n_min, 800)
    assert found.log_e < 0
    assert found.is_ruled_out
    assert "ruled out at thresholds 0.6" in found.finding().found


def test_nothing_is_ruled_out_where_the_first_loop_is_not_known() -> None:
    models = Rows.pair(5)
    found = AtContexts(forks_of(models))
    found.add((1, 2, 3, 4), [5, 6], models[0].laws[[4, 5]], None)
    assert found.finding().unjudged
    assert not found.is_ruled_out


def test_any_other_law_at_a_context_is_found_without_an_alternative() -> None:
    """The last token of every text is drawn from the draft."""
    models = Rows.pair(6)
    forks, chance = forks_of(models, None), np.random.default_rng(0)
    found = AtContexts(forks)
    for _ in range(800):
        ids = [int(chance.choice(12, p=models[1].laws[4]))]
        found.add((1, 2, 3, 4), ids, models[0].laws[[4]], 1)
    assert found.log_e > ALARM

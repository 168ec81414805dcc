"""Contexts that are chosen for withdrawn drafts, and what is said at them."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.short_drafts import Rows, ShortDrafts
from spsbench.base.protocol import Drafting
from spsbench.base.records import SamplingParams
from spsbench.parts.audit.contexts import AtContexts, Forks, choose, withdrawn
from spsbench.parts.audit.messages.faults import WITHDRAWS

AT = 0.6
ALARM = math.log(1000)


def forks_of(models: tuple[Rows, Rows], known: float | None = AT) -> Forks:
    return Forks(cast(Any, models), SamplingParams(), known and Drafting(known))


def drawn_at(
    models: tuple[Rows, Rows],
    n_min: int,
    draws: int,
    known: float | None = AT,
    *,
    declared: int = 0,
    free: int | None = 1,
) -> AtContexts:
    """What 2 chosen contexts say of an engine with that fewest number of tokens."""
    forks = Forks(cast(Any, models), SamplingParams(), Drafting(known, declared) if known else None)
    prompts = [tuple(np.random.default_rng(n).integers(0, 12, 60).tolist()) for n in range(8)]
    contexts = choose(forks, prompts, [], 2)
    engine, found = ShortDrafts(models, p_min=known or AT, n_min=n_min), AtContexts(forks)
    for number in range(draws):
        prompt = contexts[number % 2]
        ids, _, _ = engine.generate(prompt, 6, number)
        rows = models[0].laws[[prompt[-1], *ids[:-1]]]
        found.add(prompt, ids, rows, free)
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
    assert not found.is_ruled_out()


@pytest.mark.parametrize("n_min", [0, 1])
def test_drafts_that_end_early_and_stand_are_right_and_the_fault_is_ruled_out(n_min: int) -> None:
    found = drawn_at(Rows.pair(5), n_min, 800)
    assert found.log_e < 0
    assert found.is_ruled_out()
    assert "ruled out at threshold 0.6" in found.finding().found


def test_where_the_first_loop_is_not_known_both_places_have_to_rule_it_out() -> None:
    models = Rows.pair(5)
    assert drawn_at(models, 0, 1600, free=None).is_ruled_out()
    assert not drawn_at(models, 0, 40, free=None).is_ruled_out()
    wrong = drawn_at(models, 2, 1600, free=None)
    assert wrong.log_e > ALARM
    assert not wrong.is_ruled_out()


def test_what_few_draws_cannot_judge_is_said_without_a_number() -> None:
    """A factor of 10^0.0 said nothing."""
    found = drawn_at(Rows.pair(5), 0, 2).finding()
    assert found.unjudged
    assert "No threshold is judged: 2 texts are too few" in found.found
    assert "10^" not in found.found


def test_drafts_of_fewer_than_three_tokens_are_looked_behind_twice() -> None:
    """The law by enumeration of all drafts of two tokens, against that of the alternative."""
    models = Rows.pair(9)
    forks = Forks(cast(Any, models), SamplingParams(), Drafting(AT, 3, 0))
    q, p = (model.laws for model in models)
    sure, other = p.max(1) >= AT, 0.0
    for last in range(12):
        expected = np.zeros(12)
        for one in range(12):
            kept = min(1.0, q[last, one] / p[last, one])
            rest = np.maximum(q[last] - p[last], 0.0)
            stays = p[last, one] * (p[one] @ sure) * (sure[last] & sure[one])
            expected += (p[last, one] - stays) * q[last] + stays * (1 - kept) * rest / rest.sum()
            expected[one] += stays * kept
        ((name, law),) = forks.of([last]).withdrawn.items()
        assert name == ("the draft's whole row", AT)
        assert law == pytest.approx(expected, abs=0.02)  # what is improbable is taken to stand
        other = max(other, float(np.abs(law - forks_of(models).of([last]).withdrawn[name]).max()))
    assert other > 0.05  # than that of fewer than two


def test_a_worker_that_declares_three_is_held_against_that() -> None:
    found = drawn_at(Rows.pair(4), 3, 1600, declared=3)
    assert found.log_e > ALARM
    assert "fewer than 3 tokens" in str(found.leading()[1])
    right = drawn_at(Rows.pair(5), 0, 1600, declared=3)
    assert right.is_ruled_out()
    assert "fewer than 3 tokens are withdrawn is ruled out at threshold 0.6" in right.finding().found


def test_any_other_law_at_a_context_is_found_without_an_alternative() -> None:
    """The last token of every text is drawn from the draft."""
    models = Rows.pair(6)
    forks, chance = forks_of(models, None), np.random.default_rng(0)
    found = AtContexts(forks)
    for _ in range(800):
        ids = [int(chance.choice(12, p=models[1].laws[4]))]
        found.add((1, 2, 3, 4), ids, models[0].laws[[4]], 1)
    assert found.log_e > ALARM

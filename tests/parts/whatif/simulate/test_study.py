"""Simulated loops: near the exact law, true to the target where they should be, and found out where not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from spsbench.base.records import Interval, SamplingParams, Spec
from spsbench.parts.whatif.commands.simulate import FAULTS
from spsbench.parts.whatif.simulate.loops import SEQUENCE, Sampler, check
from spsbench.parts.whatif.simulate.study import Question, World, _reason, prepare, study
from spsbench.parts.whatif.simulate.summary import facts, tokens_tested
from spsbench.parts.whatif.simulate.tables import SOURCES, Language


def _question(**changes: Any) -> Question:
    settings: dict[str, Any] = {
        "source": SOURCES["dirichlet"],
        "language": Language(vocabulary=8),
        "classes": (4,),
        "alpha": 0.7,
        "distance": None,
        "ks": (3,),
        "cost": 0.1,
        "operations": 0.05,
        "tokens": 20 * SEQUENCE,
        "sampler": Sampler(SamplingParams()),
    }
    return Question(**settings | changes)


def _worlds(question: Question) -> list[World]:
    return study(question, prepare(question))


def _world(**changes: Any) -> World:
    return _worlds(_question(**changes))[0]


def test_the_loops_agree_with_the_exact_law_and_keep_the_target_s() -> None:
    world = _world(ks=(1, 4))
    assert world.alpha == pytest.approx(0.7, abs=1e-3)
    assert world.exact_fits > 1e-3
    assert world.law.follows
    assert world.law.tokens == 2 * 20 * SEQUENCE
    for point in world.points:
        found = point.simulated.acceptance
        assert found["r_prime"] == pytest.approx(point.r_prime.estimate)
        assert found["mean_acceptance_length"] == pytest.approx(point.simulated.tokens_per_loop.estimate)
        assert found["alpha_beta"] == pytest.approx(found["alpha_tested"], abs=0.05)
        assert point.speedup.estimate == pytest.approx(found["mean_acceptance_length"] / (1 + 0.1 * point.k))
        assert point.sequence_time[0] == pytest.approx(point.simulated.loops / 20 * point.cost)


def test_the_exact_law_holds_where_easy_stays_easy() -> None:
    """The mean of both lengths, 3.80, is far from it: loops of hard texts are more."""
    world = _world(language=Language(stay=1.0), classes=(32,), ks=(8,), tokens=60 * SEQUENCE)
    assert world.points[0].exact == pytest.approx(3.063, abs=1e-3)
    assert world.exact_fits > 1e-3


def test_the_same_seed_gives_the_same_loops_and_another_does_not() -> None:
    texts = [
        _world(sampler=Sampler(SamplingParams(), seed=seed)).points[0].simulated.texts for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize("name", ["temperature", "ngram"])
def test_every_source_is_sampled_without_loss(name: str) -> None:
    source = next(each for each in SOURCES.values() if each.name == name)
    world = _world(source=source, alpha=0.95, sampler=Sampler(SamplingParams(temperature=0.9)))
    assert world.law.follows
    assert world.law.impossible == 0


def test_sample_and_compare_keeps_the_law_and_accepts_less() -> None:
    world = _world(sampler=Sampler(SamplingParams(), Spec("sample-and-compare")))
    assert world.accepts < world.alpha
    assert world.law.follows
    assert world.points[0].exact is None


@pytest.mark.parametrize(
    ("formula", "exact", "reason"),
    [(2.0, 9.0, "noise"), (9.0, 2.0, "alpha varies"), (9.0, 8.0, "unexplained"), (9.0, None, "-")],
)
def test_a_reason_is_given_only_for_what_was_tested(formula: float, exact: float | None, reason: str) -> None:
    assert _reason(Interval(2.0, 1.9, 2.1), formula, exact) == reason


@pytest.mark.parametrize("rule", ["lenience:l=0.6", "typical-acceptance"])
def test_a_lossy_rule_is_seen_to_be_lossy(rule: str) -> None:
    question = _question(sampler=Sampler(SamplingParams(), Spec.parse(rule)))
    (world,) = _worlds(question)
    assert not world.law.follows
    assert "lossy by design" in str(tokens_tested(question, world.law))


@pytest.mark.thorough_but(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_out(fault: str) -> None:
    question = _question(sampler=Sampler(SamplingParams(), fault=fault), tokens=16 * SEQUENCE)
    (world,) = _worlds(question)
    assert not world.law.follows
    assert "a planted fault" in str(tokens_tested(question, world.law))


def test_a_row_off_by_one_is_no_fault_where_all_rows_are_the_same() -> None:
    assert _world(classes=(1,), sampler=Sampler(SamplingParams(), fault="row-off-by-one")).law.follows


def test_a_token_that_the_target_rules_out_is_an_alarm() -> None:
    question = _question()
    texts = _worlds(question)[0].points[0].simulated.texts
    source, language = question.source, Language(vocabulary=8, classes=4)
    tables = source.make(language, 0.1).warped(SamplingParams(top_k=1))
    found = check(tables, texts, 0)
    assert found.impossible > 0
    assert not found.follows


def test_facts_are_json_with_every_name_of_acceptance() -> None:
    question = _question(ks=(2,), tokens=4 * SEQUENCE)
    told = facts(question, _worlds(question))
    row = json.loads(json.dumps(told, allow_nan=False))["worlds"][0]["rows"][0]
    assert {"r_prime", "alpha_tested", "alpha_beta", "draft_acceptance_rate"} <= row["acceptance"].keys()
    assert told["synthetic"] is True
    assert np.isfinite(row["operations_factor"])

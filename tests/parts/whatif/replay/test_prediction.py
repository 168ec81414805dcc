"""Times of a fake clock come out as they went in, and a prediction is their sum over the loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spsbench.base.records import SamplingParams
from spsbench.law.text_loops import loops_over
from spsbench.law.theory import expected_tokens
from spsbench.parts.whatif.replay.prediction import Timed, break_even, predict, work_of
from spsbench.parts.whatif.replay.rehearsal import rehearse
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.times import COLD, LoopTimes
from spsbench.testing import fake_engine

TEXTS = [
    TargetText(f"p{i}", 0, tuple(j % 3 for j in range(5 + i)), tuple((i + j) % 3 for j in range(20)))
    for i in range(6)
]


def times(at_zero: float, slope: float, noise: float = 0.0) -> LoopTimes:
    rng = np.random.default_rng(0)
    rounds, contexts = np.repeat(np.arange(8.0), 5), rng.uniform(5, 60, 40)
    seconds = at_zero + slope * contexts + noise * rng.normal(size=40)
    places = np.tile(np.arange(COLD, COLD + 5.0), 8)
    return LoopTimes(rounds, places, contexts, seconds, 0.2 * seconds, 0 * seconds)


def line(found: LoopTimes, counts: Any = None) -> tuple[float, float]:
    """Seconds at context 0, and more of them a token of context."""
    costs = found.fitted(np.ones((1, 8)) if counts is None else counts[None])
    return float(costs.at_zero[0, 0]), float(costs.slope[0, 0])


def test_a_line_is_found_and_a_falling_one_is_taken_as_level() -> None:
    assert line(times(0.02, 1e-4)) == pytest.approx((0.02, 1e-4))
    level, slope = line(times(0.02, -1e-4))
    assert slope == 0
    assert 0.01 < level < 0.02


def test_a_line_through_less_than_nothing_is_taken_through_zero() -> None:
    """Else a resample of few and disturbed rounds gives a negative time, and a speedup below zero."""
    found = times(-0.01, 1e-3)
    at_zero, slope = line(found)
    assert at_zero == pytest.approx(0.0, abs=1e-12)
    assert slope == pytest.approx(found.seconds.mean() / found.contexts.mean())


def test_a_round_that_does_not_count_has_no_say() -> None:
    found = times(0.02, 1e-4)
    found.seconds[found.rounds == 3] += 1.0
    assert line(found, np.where(np.arange(8) == 3, 0.0, 1.0)) == pytest.approx((0.02, 1e-4))


def test_a_prediction_is_time_over_loops_by_hand() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    own, ars = work_of(TEXTS, laws), work_of(TEXTS)
    found = predict(Timed(own, times(0.03, 2e-4)), Timed(ars, times(0.02, 1e-4)))
    seconds = baseline = 0.0
    for text, law in zip(TEXTS, laws, strict=True):
        for t in range(len(text.tokens)):
            context = len(text.prompt) + t
            seconds += law.starts[0, t] * (0.03 + 2e-4 * context)
            baseline += 0.02 + 1e-4 * context
    tokens = sum(len(text.tokens) for text in TEXTS)
    assert found.ms_per_token.estimate == pytest.approx(1e3 * seconds / tokens)
    assert found.speedup.estimate == pytest.approx(baseline / seconds)


def test_cold_loops_are_charged_once_a_text() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    own, warm = work_of(TEXTS, laws), times(0.03, 2e-4)
    places = np.concatenate([warm.places, np.arange(COLD)])
    contexts = np.concatenate([warm.contexts, np.full(COLD, 10.0)])
    slow = 0.03 + 2e-4 * 10 + 0.01 * np.arange(COLD, 0, -1)
    seconds = np.concatenate([warm.seconds, slow])
    rounds = np.concatenate([warm.rounds, np.zeros(COLD)])
    cold = LoopTimes(rounds, places, contexts, seconds, 0 * seconds, 0 * seconds)
    assert line(cold) == pytest.approx((0.03, 2e-4))
    assert cold.costs.cold[0, :, 0] == pytest.approx(0.01 * np.arange(COLD, 0, -1))
    more = sum(0.01 * (COLD - place) * law.counts[place + 1 :].sum() for law in laws for place in range(COLD))
    taken = [Timed(own, one).mean_s() for one in (warm, cold)]
    assert taken[1] - taken[0] == pytest.approx(more / own.tokens.sum())


def test_the_interval_grows_with_the_noise_of_the_times() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    own, ars = work_of(TEXTS, laws), work_of(TEXTS)
    widths = []
    for noise in (0.0, 2e-3, 8e-3):
        speedup = predict(Timed(own, times(0.03, 0.0, noise)), Timed(ars, times(0.02, 0.0))).speedup
        assert speedup.low is not None
        assert speedup.high is not None
        widths.append(speedup.high - speedup.low)
    assert widths[0] < widths[1] < widths[2]


def test_cells_take_turns_and_have_the_same_rounds() -> None:
    engines = {"ars": fake_engine(0), "sps": fake_engine(2)}
    found = rehearse(
        engines, {"ars": 1, "sps": 3}, TEXTS, SamplingParams(), lambda prompt: 200 - len(prompt), budget_s=0.0
    )
    assert {*found["ars"].rounds} == {*found["sps"].rounds} == set(range(6))
    assert len(found["ars"].seconds) == 6 * 42
    assert found["ars"].contexts.min() >= 5
    assert (found["sps"].seconds > 0).all()


def test_a_loop_at_its_break_even_is_as_fast_as_ars() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    ars = Timed(work_of(TEXTS), times(0.02, 0.0))
    own = Timed(work_of(TEXTS, laws), times(0.03, 0.0))
    even = break_even(own, ars, 3)
    assert even.cost == pytest.approx(1.5)
    assert even.alpha is not None
    assert expected_tokens(even.alpha, 3) == pytest.approx(1.5)
    assert even.c == pytest.approx(0.2 * 0.03 / 3 / 0.02)
    assert even.c_allowed is not None
    dearer = times(0.03 + 3 * 0.02 * (even.c_allowed - even.c), 0.0)
    assert predict(replace(own, times=dearer), ars).speedup.estimate == pytest.approx(1.0)


def test_the_tail_is_that_of_the_loops_that_a_text_may_take() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    own = Timed(work_of(TEXTS, laws), times(0.03, 0.0))
    counts = sum(law.counts for law in laws)
    below = np.cumsum(counts) / len(laws)
    for share in (0.5, 0.9, 0.99):
        assert own.quantile_s(share) == pytest.approx(0.03 * int(np.searchsorted(below, share)))
    assert Timed(work_of(TEXTS), times(0.02, 0.0)).quantile_s(0.99) == pytest.approx(0.02 * 20)
    part = own.work.part([4, 1])
    assert [text.prompt for text in part.texts] == [1, 0]

"""Times of a fake clock come out as they went in, and a prediction is their sum over the loops."""

from __future__ import annotations

import numpy as np
import pytest

from spsbench.decode.replay import loops_over
from spsbench.records import SamplingParams
from spsbench.replay.prediction import Timed, predict, work_of
from spsbench.replay.rehearsal import COLD, LoopTimes, rehearse
from spsbench.replay.texts import TargetText
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
    return LoopTimes(rounds, places, contexts, seconds)


def test_a_line_is_found_and_a_falling_one_is_taken_as_level() -> None:
    assert times(0.02, 1e-4).line(np.ones(8)) == pytest.approx((0.02, 1e-4))
    level, slope = times(0.02, -1e-4).line(np.ones(8))
    assert slope == 0
    assert 0.01 < level < 0.02


def test_a_round_that_does_not_count_has_no_say() -> None:
    found = times(0.02, 1e-4)
    found.seconds[found.rounds == 3] += 1.0
    assert found.line(np.where(np.arange(8) == 3, 0.0, 1.0)) == pytest.approx((0.02, 1e-4))


def test_a_prediction_is_time_over_loops_by_hand() -> None:
    laws = [loops_over(np.full((len(text.tokens), 3), 0.7)) for text in TEXTS]
    own, ars = work_of(TEXTS, laws), work_of(TEXTS)
    found = predict(Timed(own, times(0.03, 2e-4)), Timed(ars, times(0.02, 1e-4)))
    seconds = baseline = 0.0
    for text, law in zip(TEXTS, laws, strict=True):
        for t in range(len(text.tokens)):
            context = len(text.prompt) + t
            seconds += law.starts[t] * (0.03 + 2e-4 * context)
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
    cold = LoopTimes(
        np.concatenate([warm.rounds, np.zeros(COLD)]), places, contexts, np.concatenate([warm.seconds, slow])
    )
    assert cold.line(np.ones(8)) == pytest.approx((0.03, 2e-4))
    assert cold.cold(np.ones(8), cold.line(np.ones(8))) == pytest.approx(0.01 * np.arange(COLD, 0, -1))
    more = sum(
        0.01 * (COLD - place) * law.counts()[place + 1 :].sum() for law in laws for place in range(COLD)
    )
    seconds = [Timed(own, one).seconds(np.ones(6), np.ones(8)) for one in (warm, cold)]
    assert seconds[1] - seconds[0] == pytest.approx(more / own.tokens.sum())


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
    found = rehearse(engines, {"ars": 1, "sps": 3}, TEXTS, SamplingParams(), 200, budget_s=0.0)
    assert {*found["ars"].rounds} == {*found["sps"].rounds} == set(range(6))
    assert len(found["ars"].seconds) == 6 * 14
    assert found["ars"].contexts.min() >= 5
    assert (found["sps"].seconds > 0).all()

"""Numbers of waves that were never sent."""

from __future__ import annotations

import math

import pytest

from spsbench.parts.load.measure import LoadWave, TimedAnswer
from spsbench.parts.load.summary import PLAIN, SPECULATING, pays_up_to, rows
from spsbench.stats.surface import crossing


def reading(sent: float, per_token: float, tokens: int = 10, drafted: int | None = None) -> TimedAnswer:
    """Tokens at equal distances."""
    times = tuple(sent + per_token * (place + 1) for place in range(tokens))
    counts = tuple(float(place + 1) for place in range(tokens))
    kept = None if drafted is None else drafted // 2
    return TimedAnswer(sent, times[-1], times, counts, drafted, kept)


def wave(
    server: int, concurrency: int, number: int, per_token: float, drafted: int | None = None
) -> LoadWave:
    readings = tuple(reading(0.0, per_token) for _ in range(concurrency))
    return LoadWave(server, concurrency, number, readings, drafted, None if drafted is None else drafted // 2)


def waves(ratios: dict[int, float], jitter: float = 0.01) -> list[LoadWave]:
    """Both servers at every concurrency, the speculating one faster by a ratio."""
    found = []
    for concurrency, ratio in ratios.items():
        for number in range(8):
            slower = 1 + jitter * number
            found.append(wave(PLAIN, concurrency, number, 0.01 * slower))
            found.append(wave(SPECULATING, concurrency, number, 0.01 / ratio * (2 - slower), drafted=8))
    return found


def test_a_row_has_what_was_planted() -> None:
    plain, speculating = rows(waves({4: 1.5}, jitter=0.0))
    assert plain.tokens_per_s.estimate == pytest.approx(400)
    assert plain.ttft_ms["p50"] == pytest.approx(10)
    assert plain.tpot_ms["p99"] == pytest.approx(10)
    assert plain.speedup is None
    assert plain.acceptance is None
    assert speculating.speedup.estimate == pytest.approx(1.5)
    assert speculating.acceptance == 0.5
    assert (speculating.requests, speculating.failed) == (32, 0)


def test_the_window_ends_when_one_request_too_few_is_in_flight() -> None:
    readings = (reading(0.0, 0.1), reading(0.0, 0.2), reading(1.0, 0.2))
    found = LoadWave(PLAIN, 2, 0, readings, None, None)
    assert found.window_s == 2.0
    assert found.window_tokens == 10 + 10 + 5


def test_failed_requests_are_counted_and_their_tokens_not() -> None:
    readings = (reading(0.0, 0.1), TimedAnswer(0.0, 0.5, error="no"))
    (row,) = rows([LoadWave(PLAIN, 2, 0, readings, None, None)])
    assert (row.requests, row.failed) == (2, 1)
    assert row.tokens_per_s.estimate == pytest.approx(10)


def test_without_an_answer_there_is_no_number() -> None:
    (row,) = rows([LoadWave(PLAIN, 1, 0, (TimedAnswer(0.0, 0.5, error="no"),), None, None)])
    assert row.tokens_per_s is None
    assert row.ttft_ms == {}


def test_where_speculation_stops_paying() -> None:
    found = pays_up_to(waves({1: 2.0, 4: 1.25, 16: 0.8}))
    assert 4 < found.low < found.estimate < found.high < 16


def test_one_server_pays_nowhere_and_everywhere() -> None:
    assert pays_up_to([each for each in waves({1: 2.0}) if each.server == PLAIN]) is None


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ([2.0, 1.5, 1.1], math.inf),
        ([0.9, 0.8, 0.7], 0.0),
        ([1.25, 0.8, 0.7], 2.0),
        ([0.9, 1.25, 0.8], 8.0),
        ([2.0, 1.0, 0.5], 4.0),
    ],
)
def test_crossing(speedups: list[float], expected: float) -> None:
    assert crossing([1, 4, 16], speedups) == pytest.approx(expected)

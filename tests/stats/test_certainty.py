"""An interval holds stretches of time where these explain more than prompts, and nothing where they do
not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spsbench.base.records import SHARD
from spsbench.stats.certainty import STRETCHES, Certainty, time_half_width, with_error
from spsbench.stats.speedup import pair, speedup_over_prompts

PROMPTS, TIMES = 40, 5
TRUTH = 1.7


def run(
    rng: Any, slow: Any, prompts: int = PROMPTS, times: int = TIMES, unlike: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """ArS and SpS of a run whose log cost ratio is ``slow`` at each timing, in order of time, beside noise.

    Prompts differ by ``unlike`` loops either way.
    """
    noise = rng.normal(0, 0.1, (2, times, prompts))
    loops = 11 + rng.integers(-unlike, unlike + 1, prompts)
    base = 0.05 * np.exp(noise[0] + np.asarray(slow).reshape(times, prompts))
    own = loops / 11 * 0.05 / TRUTH * np.exp(noise[1])

    def frame(arm: str, seconds: Any, counts: Any) -> pd.DataFrame:
        kept = [{str(1 + time): each for time, each in enumerate(column)} for column in seconds.T]
        return pd.DataFrame(
            {
                "example_id": [f"e{number}" for number in range(prompts)],
                "sample_index": 0,
                "arm": arm,
                "new_tokens": 44,
                "loop_count": counts,
                "prefill_s": 0.01,
                "decode_s": seconds.mean(0),
                "timings": kept if times > 1 else None,
                "finish_reason": "stop",
                "error": None,
            }
        )

    return frame("ars", base, 44), frame("sps", own, loops)


def flicker(rng: Any, size: int) -> Any:
    """1/f noise of standard deviation 1 or so over the whole."""
    frequency = np.fft.rfftfreq(size)
    parts = np.zeros(len(frequency), complex)
    parts[1:] = (rng.normal(size=len(frequency) - 1) + 1j * rng.normal(size=len(frequency) - 1)) / np.sqrt(
        frequency[1:]
    )
    noise = np.fft.irfft(parts, size)
    return noise / noise.std()


def test_noise_of_a_moment_hardly_widens_the_interval() -> None:
    """Each fifth of a run has an error of 2.2% by noise of 14% a timing."""
    rng = np.random.default_rng(1)
    widths = [time_half_width(*run(rng, np.zeros(PROMPTS * TIMES))) for _ in range(200)]
    assert np.median(widths) < 0.07
    once = [time_half_width(*run(rng, np.zeros(200), 200, 1)) for _ in range(200)]
    assert np.mean(np.asarray(once) > 0) < 0.6


@pytest.mark.parametrize(("size", "most"), [(0.02, 0.92), (0.05, 0.8)])
def test_slow_changes_are_in_it_and_without_them_it_covers_too_little(size: float, most: float) -> None:
    """The truth is the mean over an hour of runs, under 1/f noise of so much."""
    rng = np.random.default_rng(2)
    runs, timings = 60, PROMPTS * TIMES
    held = {True: 0, False: 0}
    for _ in range(10):
        noise = size * flicker(rng, runs * timings)
        for part in noise.reshape(runs, timings)[::6]:
            base, own = run(rng, part - noise.mean())
            for over_time in held:
                found = Certainty(over_time=over_time).without_contention(base, own)
                assert found is not None
                assert found.low is not None
                assert found.high is not None
                held[over_time] += found.low <= TRUTH <= found.high
    assert held[True] / 100 >= 0.9
    assert held[False] / 100 <= most


@pytest.mark.parametrize(("prompts", "times"), [(39, 1), (20, 1), (7, 5), (7, 4)])
def test_few_timings_say_nothing_of_time(prompts: int, times: int) -> None:
    rng = np.random.default_rng(3)
    slow = np.repeat([0.0, 1.0], [prompts * times // 2, prompts * times - prompts * times // 2])
    assert time_half_width(*run(rng, slow, prompts, times)) == 0.0


def test_a_long_run_needs_no_second_timing() -> None:
    """Of 200 prompts in turn each fifth is a stretch."""
    rng = np.random.default_rng(4)
    slow = np.repeat(np.linspace(0, 0.5, STRETCHES), 40)
    assert time_half_width(*run(rng, slow, 200, 1, 4)) > 0.5
    flat = [time_half_width(*run(rng, np.zeros(200), 200, 1, 4)) for _ in range(20)]
    assert np.median(flat) < 0.05


def test_shards_have_stretches_of_their_own() -> None:
    """Prompts are dealt out in turn, so that each stretch of the whole order has as much of either shard."""
    rng = np.random.default_rng(7)

    def widths(shards: int, prompts: int, apart: float) -> tuple[float, float]:
        shard = np.arange(prompts) % shards
        tables = run(rng, apart * (shard == 0), prompts, 1)
        conditions = [{SHARD: 1.0 + number} for number in shard]
        merged = [table.assign(conditions=conditions) for table in tables]
        return time_half_width(*tables), time_half_width(*merged)

    mixed, own = np.median([widths(2, 200, 0.5) for _ in range(20)], axis=0)
    assert mixed < 0.05
    assert own > 0.4
    assert np.median([widths(2, 200, 0.0) for _ in range(20)], axis=0)[1] < 0.05
    assert widths(2, 38, 1.0)[1] == 0.0, "of each shard two stretches"
    assert widths(3, 72, 1.0)[1] > 0.5, "three of each"


def test_batches_and_runs_of_earlier_versions_have_prompts_alone() -> None:
    rng = np.random.default_rng(5)
    base, own = run(rng, np.repeat(np.linspace(0, 0.5, TIMES), PROMPTS))
    plain = speedup_over_prompts(pair(base, own))
    assert Certainty().without_contention(base, own) == plain
    assert Certainty(over_time=True).without_contention(base, own) != plain
    assert time_half_width(base.assign(wave="e0"), own.assign(wave="e0")) == 0.0


def test_errors_add_up_in_squares() -> None:
    plain = speedup_over_prompts(pair(*run(np.random.default_rng(6), np.zeros(PROMPTS * TIMES))))
    assert plain is not None
    assert plain.low is not None
    wider = with_error(plain, 0.3)
    assert wider.low is not None
    below = math.log(plain.ratio / plain.low)
    assert math.log(plain.ratio / wider.low) == pytest.approx(math.hypot(below, 0.3))
    assert with_error(plain, 0.0) == plain

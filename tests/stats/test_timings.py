"""Sums that grow with a run are those of its tables."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spsbench.base.records import Arm, SamplingParams
from spsbench.stats.anytime import Timings
from spsbench.stats.speedup import pair

ARS = Arm("ars", 0, "eager", "nucleus", SamplingParams())
OTHER = Arm("ars", 0, "hf-generate", "nucleus", SamplingParams())
SPS = Arm("sps", 4, "eager", "nucleus", SamplingParams())
ARMS = (ARS, OTHER, SPS)


def _samples(prompts: int) -> pd.DataFrame:
    """Two samples a prompt and arm; some fail, and some are empty."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "example_id": f"e{prompt}",
            "sample_index": index,
            "arm": arm.name,
            "new_tokens": int(rng.integers(0, 9)),
            "prefill_s": 0.1,
            "decode_s": float(rng.gamma(2.0)) + (arm is OTHER),
            "finish_reason": "stop",
            "error": "out of memory" if rng.random() < 0.2 else None,
        }
        for prompt in range(prompts)
        for index in range(2)
        for arm in ARMS
    ]
    return pd.DataFrame(rows)


def _filled(samples: pd.DataFrame) -> Timings:
    timings = Timings(due=6)
    for row in samples.itertuples():
        done = pd.isna(row.error) and row.new_tokens > 0
        timings.add(
            row.example_id, row.sample_index, row.arm, (row.decode_s, row.new_tokens) if done else None
        )
    return timings


def test_pairs_are_those_of_the_tables() -> None:
    samples = _samples(30)
    by_arm = dict(list(samples.groupby("arm")))
    ours = _filled(samples).pair(ARS.name, SPS.name)
    theirs = pair(by_arm[ARS.name], by_arm[SPS.name])
    for name in ("baseline_s", "baseline_tokens", "arm_s", "arm_tokens"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name))


def test_the_baseline_is_the_fastest_of_its_sampling() -> None:
    [found] = _filled(_samples(30)).compared(ARMS)
    assert found[:2] == (SPS.name, ARS.name)


def test_a_prompt_counts_once_all_of_it_was_tried_and_a_later_attempt_takes_its_place() -> None:
    timings = Timings(due=2)
    timings.add("a", 0, ARS.name, (2.0, 10))
    assert "a" in timings
    assert not timings.complete
    timings.add("a", 0, SPS.name, None)
    assert list(timings.complete) == ["a"]
    assert timings.compared((ARS, SPS)) == []
    timings.add("a", 0, SPS.name, (1.0, 10))
    assert timings.pair(ARS.name, SPS.name).ratio() == 2.0
    timings.forget_times()
    assert list(timings.complete) == ["a"]
    assert timings.compared((ARS, SPS)) == []

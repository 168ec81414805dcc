"""The interval over processes covers where that over pooled prompts does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from spsbench.base.records import Speedup
from spsbench.stats.speedup import PairedTimes, pair_processes, speedup_over_processes, speedup_over_prompts

Make = Callable[..., pd.DataFrame]

TRUTH = 1.5


def _times(processes: int, prompts: int, effect: float, rng: np.random.Generator) -> PairedTimes:
    """Every process slows the arm by its own lognormal factor; prompts differ and sequences jitter."""
    tokens = np.full((processes, prompts), 50.0)
    ease = rng.lognormal(0.0, 0.1, prompts)
    ease /= np.exp(0.1**2 / 2)
    process = rng.lognormal(0.0, effect, (processes, 1)) / np.exp(effect**2 / 2)
    jitter = rng.lognormal(0.0, 0.02, (2, processes, prompts))
    return PairedTimes(0.7 * jitter[0], tokens, 0.7 / TRUTH * ease * process * jitter[1], tokens)


def _flat(times: PairedTimes) -> PairedTimes:
    return PairedTimes(*(cell.sum(axis=0) for cell in times.columns()))


def test_it_covers_a_process_effect_and_the_flat_interval_does_not() -> None:
    """200 simulated runs of 5 processes that differ by 5% and 30 prompts.

    At 95% coverage fewer than 179 hits of 200 have odds below 1 in 1,000; it errs on the
    wide side, so there is no upper limit but the width. Pooled over processes, the flat interval
    covers fewer than 85%.
    """
    rng = np.random.default_rng(11)
    hierarchical = flat = 0
    widths = []
    for _ in range(200):
        times = _times(5, 30, 0.05, rng)
        for kind in ("hierarchical", "flat"):
            found = (
                speedup_over_processes(times)
                if kind == "hierarchical"
                else speedup_over_prompts(_flat(times))
            )
            assert found.low is not None
            assert found.high is not None
            hit = found.low <= TRUTH <= found.high
            if kind == "flat":
                flat += hit
            else:
                hierarchical += hit
                widths.append(found.high - found.low)
    assert hierarchical >= 179
    assert flat < 170
    assert np.median(widths) < 0.4 * TRUTH


def test_without_a_process_effect_it_is_wider_but_not_useless() -> None:
    times = _times(5, 60, 0.0, np.random.default_rng(12))
    found, flat = speedup_over_processes(times), speedup_over_prompts(_flat(times))
    assert found is not None
    assert flat is not None
    width, least = (found.high or 9) - (found.low or 0), (flat.high or 9) - (flat.low or 0)
    assert least < width < 4 * least
    assert found.ratio == pytest.approx(flat.ratio)


def test_two_processes_give_a_wide_interval_and_one_gives_none() -> None:
    rng = np.random.default_rng(13)
    two = speedup_over_processes(_times(2, 30, 0.05, rng))
    assert two is not None
    assert (two.high or 0) / (two.low or 1) > 1.3
    one = speedup_over_processes(_times(1, 30, 0.05, rng))
    assert (one.low, one.high) == (None, None)


def test_constant_and_missing_data() -> None:
    ones = np.ones((3, 4))
    assert speedup_over_processes(PairedTimes(ones, ones, ones / 2, ones)) == Speedup(2.0, None, None)
    none = np.zeros((4, 0, 0))
    assert speedup_over_processes(PairedTimes(*none)) is None


def test_sequences_are_matched_within_their_process(make_samples: Make) -> None:
    frames = {}
    for method, seconds in (("ars", (1.0, 4.0)), ("sps", (0.5, 1.0))):
        parts = [
            make_samples([seconds[process]] * 3, [10] * 3, method=method, k=4).assign(process=process)
            for process in (0, 1)
        ]
        frames[method] = pd.concat(parts, ignore_index=True)
    lonely = make_samples([9.0], [10]).assign(process=2, example_id="e7")
    times = pair_processes(pd.concat([frames["ars"], lonely]), frames["sps"])
    assert times.baseline_s.tolist() == [[1.0] * 3, [4.0] * 3]
    assert times.arm_s.tolist() == [[0.5] * 3, [1.0] * 3]
    found = speedup_over_processes(times)
    assert found.ratio == pytest.approx(15 / 4.5)


def test_processes_with_prompts_of_their_own_are_told_by_zeros(make_samples: Make) -> None:
    frames = []
    for process in range(3):
        frame = make_samples([1.0 + process] * 2, [10] * 2).assign(process=process)
        frames.append(frame.assign(example_id=[f"p{process}a", f"p{process}b"]))
    baseline = pd.concat(frames)
    times = pair_processes(baseline, baseline.assign(decode_s=baseline["decode_s"] / 2))
    assert times.baseline_s.shape == (3, 6)
    assert (times.baseline_s > 0).sum() == 6
    found = speedup_over_processes(times)
    assert found.ratio == pytest.approx(2.0)

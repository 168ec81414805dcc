"""Others on the CPU: no interval, no recommendation, and the first thing that a reader sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from summarised import summarise

from spsbench.report.facts import untrusted
from spsbench.report.sections import render
from spsbench.stats.conditions import contention

Make = Callable[..., pd.DataFrame]


def measured(make_samples: Make, taken: dict[str, float] | None) -> pd.DataFrame:
    """Thirty sequences of 0.7 s and of 0.35 s, prefill .01 s each."""
    arms = [make_samples([0.7] * 30, [50] * 30), make_samples([0.35] * 30, [50] * 30, method="sps", k=4)]
    samples = pd.concat(arms, ignore_index=True)
    samples.loc[0, "decode_s"] = 0.9  # or the interval would be a point
    samples["conditions"] = [taken] * len(samples)
    return samples


def test_shares_are_of_the_measured_seconds(make_samples: Make) -> None:
    samples = measured(make_samples, {"waited_s": 0.11, "stolen_s": 0.001, "load_1m": 9.0})
    total = 30 * (0.71 + 0.36) + 0.2
    found = contention(samples, {})
    assert found["waited_share"] == pytest.approx(60 * 0.11 / total)
    assert found["stolen_share"] == pytest.approx(60 * 0.001 / total)
    assert found["trusted"] is False
    (reason,) = found["reasons"]
    assert f"all threads together waited {60 * 0.11 / total:.2f} s for a CPU" in reason


@pytest.mark.parametrize("taken", [None, {}, {"load_1m": 40.0}, {"waited_s": 0.02, "stolen_s": 0.001}])
def test_little_or_nothing_told_is_no_reason(make_samples: Make, taken: dict[str, float] | None) -> None:
    assert contention(measured(make_samples, taken), {})["trusted"] is True


@pytest.mark.parametrize(("share", "trusted"), [(None, True), (0.001, True), (0.07, False)])
def test_the_share_of_earlier_versions_counts(make_samples: Make, share: float | None, trusted: bool) -> None:
    samples = measured(make_samples, None).drop(columns="conditions")
    assert contention(samples, {"stolen_share": share})["trusted"] is trusted


def test_untrusted_times_have_no_interval_and_the_reader_is_told_first(
    make_samples: Make, make_loops: Make
) -> None:
    quiet, busy = (
        summarise(measured(make_samples, {"waited_s": waited}), make_loops([4, 3] * 60), {})
        for waited in (0.0, 0.3)
    )
    speedup: dict[str, Any] = quiet["rows"][1]["speedup"]
    assert speedup["low"] < speedup["ratio"] < speedup["high"]
    assert untrusted(quiet) == []
    row = busy["rows"][1]
    for name in ("speedup", "end_to_end_speedup"):
        assert (row[name]["low"], row[name]["high"]) == (None, None)
        assert row[name]["ratio"] == quiet["rows"][1][name]["ratio"]
    assert busy["verdict"] is None
    (sentence,) = untrusted(busy)
    assert sentence.startswith("DO NOT TRUST THESE TIMES")
    assert (busy["warnings"][0], sentence in quiet["warnings"]) == (sentence, False)
    assert quiet["rows"][1]["speedup"]["low"] is not None
    page = render(busy, {})
    assert page.splitlines()[2].startswith("**DO NOT TRUST THESE TIMES")
    assert page.count("DO NOT TRUST THESE TIMES") == 1

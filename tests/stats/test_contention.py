"""Others on the CPU: what an interval holds of it, and where that hides the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.report.sections import render
from spsbench.stats.certainty import OVER_TIME
from spsbench.stats.conditions import contention, disturbance, gate_failures, taken_too_much, times_label
from spsbench.stats.messages.timings import (
    ContentionHides,
    ContentionIncluded,
    ContentionWidened,
    contention_named,
)

Make = Callable[..., pd.DataFrame]
Summary = Any


def measured(make_samples: Make, taken: dict[str, float] | None) -> pd.DataFrame:
    """Thirty sequences of 0.7 s and of 0.35 s, prefill .01 s each."""
    arms = [make_samples([0.7] * 30, [50] * 30), make_samples([0.35] * 30, [50] * 30, method="sps", k=4)]
    samples = pd.concat(arms, ignore_index=True)
    samples.loc[0, "decode_s"] = 0.9  # or the interval would be a point
    samples["conditions"] = [taken] * len(samples)
    return samples


@pytest.mark.parametrize(("stolen_s", "reasons"), [(0.0001, 1), (0.02, 2)])
def test_what_reads_as_nothing_is_not_said(make_samples: Make, stolen_s: float, reasons: int) -> None:
    taken = {"waited_s": 0.11, "stolen_s": stolen_s}
    found = contention(measured(make_samples, taken), {"interval": OVER_TIME})["reasons"]
    assert len(found) == reasons
    assert "0.00 s" not in " ".join(found)


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


def of(share: float, ks: tuple[int, ...] = (0, 4), prompts: int = 30, **info: Any) -> Summary:
    """A simulated run whose threads all waited for so much of each sequence's time."""
    samples, loops = sweep(ks=ks, prompts=prompts)
    seconds = samples["prefill_s"] + samples["decode_s"]
    samples["conditions"] = [{"waited_s": share * each} for each in seconds]
    return summarise(samples, loops, {"interval": OVER_TIME, **info})


def test_a_share_is_held_by_the_end_that_it_may_hide() -> None:
    """Seconds that CPU contention took of an arm delayed it by none or by all of them."""
    quiet, busy = of(0.0), of(0.1)
    assert busy["contention"]["lost_by_arm"] == pytest.approx({"ars-nucleus": 0.1, "sps-k4-nucleus": 0.1})
    ours, theirs = (summary["rows"][1]["speedup"] for summary in (quiet, busy))
    assert theirs["ratio"] == ours["ratio"]
    assert theirs["low"] == pytest.approx(0.9 * ours["low"])
    assert theirs["high"] == pytest.approx(ours["high"] / 0.9)
    assert (times_label(quiet), disturbance(quiet)) == ("clean", None)
    assert times_label(busy) == "widened"
    widened = disturbance(busy)
    assert isinstance(widened, ContentionWidened)
    assert str(widened) == "Interval widened: CPU contention took 10% of the time measured."
    (verdict,) = busy["verdict"]
    assert (verdict["outcome"], verdict["lost_share"]) == ("pays", pytest.approx(0.1))
    assert busy["why"]


def test_what_others_did_not_take_is_no_reason() -> None:
    samples, loops = sweep(ks=(0,))
    samples["conditions"] = [
        {"waited_s": 0.1 * each, "stolen_s": 1e-4 * each} for each in samples["decode_s"]
    ]
    (reason,) = summarise(samples, loops, {"interval": OVER_TIME})["contention"]["reasons"]
    assert "waited" in reason
    samples["conditions"] = [{"stolen_s": 0.03 * each} for each in samples["decode_s"] / 10]
    samples.loc[0, "arm"] = "of one sequence"
    samples.at[0, "conditions"] = {"stolen_s": 0.03 * samples["decode_s"][0]}
    (only,) = summarise(samples, loops, {"interval": OVER_TIME})["contention"]["reasons"]
    assert "other virtual machines" in only


def test_what_hides_the_answer_leaves_what_does_not_depend_on_it() -> None:
    busy = of(0.7, models={"target": {"dtype": "float32"}})
    assert times_label(busy) == "undecided"
    (verdict,) = busy["verdict"]
    assert (verdict["outcome"], verdict["leaning"]) == ("unclear", "pays")
    assert busy["why"] is busy["ceiling"] is busy["hindsight"] is None
    assert busy["rows"][1]["tokens_per_loop"] > 1
    hidden = disturbance(busy)
    assert isinstance(hidden, ContentionHides)
    sentence = str(hidden)
    assert sentence.startswith(
        "UNDECIDED: CPU contention took 70% of the time measured, which may hide the answer."
    )
    assert "spsbench run --resume RUN --remeasure" in sentence
    busy["rows"][0]["processes"] = 2
    assert "the same command with --out RUN and --remeasure" in str(disturbance(busy))
    busy["rows"][0]["processes"] = 1
    page = render(busy, {})
    assert page.splitlines()[2].startswith("**Probably pays: ")
    assert page.splitlines()[3].startswith("**UNDECIDED: ")
    assert page.count("UNDECIDED") == 1
    about = f"about {busy['rows'][1]['speedup']['ratio']:.2f}x per token"
    assert f"Probably pays: SpS (K=4) ran {about}; CPU contention took 70% of the time." in page


def test_of_ars_alone_no_verdict_is_asked() -> None:
    busy, quiet = of(0.7, ks=(0,)), of(0.0, ks=(0,))
    assert (times_label(busy), times_label(quiet), disturbance(quiet)) == ("disturbed", "clean", None)
    assert type(disturbance(busy)) is ContentionIncluded
    sentence = str(disturbance(busy))
    assert sentence.startswith(
        "Disturbed: CPU contention took 70% of the time measured, and ms/token includes"
    )
    assert "--remeasure" in sentence
    assert "UNDECIDED" not in render(busy, {})
    assert len(gate_failures(busy, "untrusted")) == 1
    assert gate_failures(quiet, "untrusted") == []
    beside = of(0.7)
    beside["rows"] = [{**row, "method": "draft"} if row["baseline"] else row for row in beside["rows"]]
    assert times_label({**beside, "verdict": None}) == "undecided"  # a speedup is shown, and may be hidden
    begun = {**beside, "verdict": None, "rows": [{**row, "speedup": None} for row in beside["rows"]]}
    assert times_label(begun) == "disturbed"


@pytest.mark.parametrize(
    ("ks", "prompts", "why"),
    [((0, 4), 1, "There is no interval over 1 prompt."), ((0, 2, 4), 4, "arms takes 8 prompts; these are 4")],
)
def test_what_more_prompts_alone_would_settle_is_not_to_be_timed_again(
    ks: tuple[int, ...], prompts: int, why: str
) -> None:
    """Whatever else computes: the verdict was not hidden, and no quiet machine brings one."""
    busy = of(0.7, ks, prompts)
    assert times_label(busy) == "disturbed"
    (verdict,) = busy["verdict"]
    assert (verdict["outcome"], "leaning" in verdict) == ("unclear", False)
    page = render(busy, {})
    assert why in page.splitlines()[2]
    assert "To settle it" not in page


def test_the_report_says_that_its_interval_holds_what_others_took() -> None:
    holds = "with the spread of the run's fifths by time and CPU contention; what changes over hours"
    assert holds in render(of(0.1), {"interval": OVER_TIME})
    assert "the run's fifths by time; what changes over hours" in render(of(0.0), {"interval": OVER_TIME})
    merged = {"interval": OVER_TIME, "shards": [{"shard": "1/2"}, {"shard": "2/2"}]}
    assert "the spread of the shards' fifths by time" in render(of(0.0), merged)


@pytest.mark.parametrize(("info", "kept"), [({}, True), ({"interval": OVER_TIME}, False)])
def test_runs_of_earlier_versions_keep_their_intervals(info: dict[str, Any], kept: bool) -> None:
    """They were called clean up to 6% of waiting; nothing was timed again then."""
    samples, loops = sweep(ks=(0, 4), prompts=30)
    seconds = samples["prefill_s"] + samples["decode_s"]
    samples["conditions"] = [{"waited_s": 0.05 * each} for each in seconds]
    found = summarise(samples, loops, info)
    assert found["contention"]["trusted"] is kept
    assert (times_label(found) == "clean") is kept


def test_a_machine_that_counts_nothing_is_said_to() -> None:
    samples, loops = sweep(ks=(0, 4), prompts=30)
    unseen = summarise(samples.assign(conditions=None), loops, {"interval": OVER_TIME})
    assert sum("is not known" in text for text in unseen["warnings"]) == 1
    assert not any("is not known" in text for text in of(0.0)["warnings"])


def test_what_a_gpu_lost_is_not_called_contention_of_the_cpu() -> None:
    waited = [*map(str, taken_too_much({"waited_s": 0.3}))]
    assert contention_named(waited) == "CPU contention"
    for lost in ("throttled_s", "shared_s"):
        (reason,) = taken_too_much({lost: 0.2})
        assert contention_named([*waited, str(reason)]) == "CPU and GPU contention and throttling"

"""Which timings of a sequence count, and that the journal and the tables keep all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.records import Generation, Loop, Prompt, Sample
from spsbench.parts.whatif.bench import turns
from spsbench.store import RunStore
from spsbench.store.timings import CLEAN, Timing, counting, disturbed, least_disturbed, rounds, shares_lost

ARMS = ("ars", "sps")


def timing(arm: str = "ars", attempt: int = 1, waited: float = 0.0, **changes: Any) -> Timing:
    """One of half a second; ``waited`` is a share of it."""
    own = Timing(("e0", 0, arm), ("e0", 0), attempt, False, 0.5, 0.5 * waited, 0.0, 0.7, 0)
    return dataclasses.replace(own, **changes)


def test_a_round_counts_by_the_arm_that_lost_most() -> None:
    timings = [timing("ars", 1, 0.5), timing("sps", 1), timing("sps", 2, 0.3), timing("ars", 2)]
    assert rounds(timings) == {("e0", 0): {1: 0.5, 2: 0.3}}
    assert counting({1: 0.5, 2: 0.3}) == [2]
    assert disturbed(timings) == [("e0", 0)]
    again = [*timings, timing("ars", 3), timing("sps", 3, CLEAN)]
    assert counting(rounds(again)["e0", 0]) == [3]
    assert disturbed(again) == []


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ({1: 0.001}, [1]),
        ({1: None, 2: None}, [1, 2]),
        ({1: 0.01, 2: 0.5, 3: 0.0}, [1, 3]),
        ({1: 0.4, 2: 0.4, 3: 0.5}, [1]),
    ],
)
def test_all_clean_attempts_count_else_the_least_disturbed_first_one(
    attempts: dict[int, float | None], expected: list[int]
) -> None:
    assert counting(attempts) == expected


def test_an_attempt_that_lacks_a_sequence_or_failed_does_not_count() -> None:
    first = [timing(arm, 1, 0.9) for arm in ARMS]
    for later in ([timing("ars", 2)], [timing("ars", 2), timing("sps", 2, failed=True)]):
        assert rounds([*first, *later]) == {("e0", 0): {1: 0.9}}
    failed_at_first = [timing("ars", 1, 0.9), timing("sps", 1, failed=True), timing("ars", 2)]
    assert rounds(failed_at_first) == {("e0", 0): {1: 0.9, 2: 0.0}}


def test_stolen_time_is_shared_by_its_second() -> None:
    """It is counted in hundredths of a second: one says nothing of a sequence of 50 ms."""
    short = [timing(elapsed_s=0.05, sampled_s=0.01 if number == 3 else 0.0) for number in range(40)]
    assert shares_lost(short) == pytest.approx([0.01] * 20 + [0.0] * 20)
    long = [timing(elapsed_s=2.0, sampled_s=0.5), timing(elapsed_s=2.0)]
    assert shares_lost(long) == pytest.approx([0.25, 0.0])
    assert shares_lost([timing(exact_s=None, sampled_s=None)]) == [None]


def sample(arm: str, seconds: float, waited: float, attempt: int | None = None, **changes: Any) -> Sample:
    loops = [Loop(4, 2, 3, 3, 1.5, 0, 0.1, 0.2, 0.05, 0.01, seconds) for _ in range(2)]
    made = Generation([5, 6, 7], "a text", loops, 0.01, seconds, "stop")
    own = Sample("e0", 0, arm, 3, made, conditions={"waited_s": waited, "stolen_s": 0.0}, attempt=attempt)
    return dataclasses.replace(own, **changes)


def begin(folder: Path) -> RunStore:
    given: dict[str, Any] = {
        "identity": {},
        "config": {},
        "info": {},
        "prompts": [Prompt("e0", "x", (1,), "y")],
    }
    return RunStore.create(folder, resume=True, **given)


@given(seconds=st.lists(st.floats(0.1, 0.9), min_size=6, max_size=6))
def test_what_counts_never_depends_on_how_long_it_took(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[float]
) -> None:
    """Shares are of waiting in proportion, so that times alone differ."""
    with begin(tmp_path_factory.mktemp("run") / "run") as store:
        for place, taken in enumerate(seconds):
            arm, attempt = ARMS[place % 2], 1 + place // 2
            share = (0.3, 0.1, 0.2)[attempt - 1]
            store.append(sample(arm, taken, share * (taken + 0.01), attempt if attempt > 1 else None))
        assert [each.attempt for each in store.samples()] == [2, 2]
        assert [each.generation.decode_s for each in store.samples()] == pytest.approx(seconds[2:4])


def test_clean_timings_are_averaged_and_all_are_kept(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        for attempt, taken, waited in ((None, 0.4, 0.3), (2, 0.2, 0.0), (3, 0.3, 0.0)):
            for arm in ARMS:
                store.append(sample(arm, taken, waited, attempt))
        (ars, sps) = store.samples()
        assert ars.generation.decode_s == sps.generation.decode_s == pytest.approx(0.25)
        assert ars.generation.loops is not None
        assert [loop.loop_s for loop in ars.generation.loops] == pytest.approx([0.25, 0.25])
        assert (ars.attempt, ars.conditions["waited_s"], store.replaced()) == (2, 0.0, 2)
        from_journal = store.frames()
        assert from_journal.samples["timings"][0] == pytest.approx({"2": 0.2, "3": 0.3})
        store.write_parquet()
        pd.testing.assert_frame_equal(store.frames().samples, from_journal.samples)
        kept = pq.read_table(store.directory / "timings.parquet").to_pandas()
        assert kept["attempt"].tolist() == [1, 1, 2, 2, 3, 3]
        assert kept["counts"].tolist() == [False, False, True, True, True, True]
        assert kept["decode_s"].tolist() == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.3, 0.3])
        assert len(list(RunStore.open(store.directory).samples())) == 2


def test_times_of_another_text_are_not_averaged(tmp_path: Path) -> None:
    other = dataclasses.replace(sample("ars", 0.9, 0.0).generation, tokens=[5, 6, 8])
    with begin(tmp_path / "run") as store:
        store.append(sample("ars", 0.2, 0.0))
        store.append(sample("ars", 0.9, 0.0, 2, generation=other))
        (kept,) = store.samples()
        assert (kept.generation.tokens, kept.generation.decode_s) == ([5, 6, 7], 0.2)


def test_a_run_without_further_timings_has_no_table_of_them(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        store.append(sample("ars", 0.2, 0.0))
        store.write_parquet()
        assert not (store.directory / "timings.parquet").exists()
        assert store.frames().samples["timings"].tolist() == [None]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ([0.5, 0.0, 0.01, 0.0, 0.02, 0.0, 0.3], [1, 2, 3, 4, 5]),
        ([0.5, 0.3, 0.4, 0.2, 0.6, 0.1, 0.0], [1, 2, 3, 5, 6]),
        ([0.5, 0.3], [0, 1]),
        ([], []),
    ],
)
def test_of_rounds_the_clean_ones_count_or_the_least_disturbed(
    lost: list[float], expected: list[int]
) -> None:
    assert least_disturbed(lost) == expected


def test_bench_leaves_disturbed_rounds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arms of a round, so that they stay paired; the warm-up is of no round."""
    shares = iter([0.9, 0.0, 0.5, 0.0, 0.0, 0.0, 0.01])
    monkeypatch.setattr(turns, "watch", lambda: lambda: next(shares))
    arms: dict[str, Any] = {"one": lambda number: number, "other": lambda number: 10 * number}
    next(shares)
    assert turns.in_turns(arms, range(-1, 6), 0) == {"one": [0, 2, 3, 4, 5], "other": [0, 20, 30, 40, 50]}

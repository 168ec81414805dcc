from __future__ import annotations

import pytest

from spsbench.decode.clock import FakeClock, Stopwatch, SystemClock


def test_phases_cover_all_the_time_between_start_and_last_lap() -> None:
    clock = FakeClock(tick_s=0.5)
    watch = Stopwatch(clock)
    clock.advance(2.0)
    watch.lap("draft")
    watch.lap("verify")
    clock.advance(1.0)
    watch.lap("draft")
    assert watch.seconds == pytest.approx({"draft": 4.0, "verify": 0.5, "sample": 0.0, "other": 0.0})


def test_take_leaves_no_gap_between_loops() -> None:
    clock = FakeClock(tick_s=0.0)
    watch = Stopwatch(clock)
    watch.lap("other")
    first = watch.take()
    clock.advance(3.0)
    watch.lap("verify")
    second = watch.take()
    assert sum(first.values()) == 0.0
    assert second["verify"] == pytest.approx(3.0)
    assert sum(watch.seconds.values()) == 0.0


def test_start_forgets_what_came_before() -> None:
    clock = FakeClock(tick_s=0.0)
    watch = Stopwatch(clock)
    clock.advance(5.0)
    watch.start()
    watch.lap("other")
    assert sum(watch.seconds.values()) == 0.0


def test_the_system_clock_does_not_run_backwards() -> None:
    clock = SystemClock()
    looks = [clock.now() for _ in range(100)]
    assert looks == sorted(looks)


def test_skipped_time_belongs_to_no_phase() -> None:
    clock = FakeClock(tick_s=1.0)
    watch = Stopwatch(clock)
    watch.lap("draft")
    clock.advance(100.0)
    assert watch.skip() == 101.0
    watch.lap("verify")
    assert watch.take() == {"draft": 1.0, "verify": 1.0, "sample": 0.0, "other": 0.0}


class _Collectives(FakeClock):
    """A clock of a split target, whose collectives take as long as they are told."""

    spent_s = 0.0

    def communicated(self) -> float:
        spent_s, self.spent_s = self.spent_s, 0.0
        return spent_s

    def collective(self, seconds: float) -> None:
        self.advance(seconds)
        self.spent_s += seconds


def test_time_within_collectives_is_a_phase_of_its_own() -> None:
    clock = _Collectives(tick_s=0.0)
    clock.collective(9.0)
    watch = Stopwatch(clock)  # that of the prompt is no loop's
    clock.advance(2.0)
    clock.collective(3.0)
    watch.lap("verify")
    clock.collective(1.0)
    watch.lap("other")
    assert watch.take() == {"draft": 0.0, "verify": 2.0, "sample": 0.0, "other": 0.0, "comm": 4.0}
    clock.collective(5.0)
    assert watch.skip() == 5.0
    watch.lap("other")
    assert sum(watch.take().values()) == 0.0

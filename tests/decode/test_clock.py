from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.virtual_device import VirtualDevice

from spsbench.decode.clock import DeviceSeconds, FakeClock, Stopwatch, SystemClock


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


MS = 1e-3


def _loop(device: VirtualDevice, watch: Stopwatch, host_ms: float, device_ms: float) -> Mapping[str, float]:
    """A loop whose draft and verify take so long to launch and on the device; one wait."""
    device.compute(0.1 * MS)
    watch.lap("other")
    for phase, times in (("draft", 2), ("verify", 1)):
        for _ in range(10):
            device.launch(times * device_ms / 10 * MS, host_s=times * host_ms / 10 * MS)
        watch.lap("draft" if phase == "draft" else "verify")
    device.launch(0.2 * MS)
    device.wait()
    watch.lap("sample")
    device.compute(0.3 * MS)
    watch.lap("other")
    return watch.take()


def test_on_a_device_each_phase_has_the_devices_time_and_nothing_waits_for_it() -> None:
    device = VirtualDevice()
    watch = device.stopwatch()
    loops = [_loop(device, watch, host_ms=0.02, device_ms=3.0) for _ in range(3)]
    assert device.waits == 3  # the loops' own
    assert device.now_s == pytest.approx(3 * 9.6 * MS, rel=0.02)
    for loop in loops:
        assert loop["draft"] == pytest.approx(6 * MS, rel=0.01)
        assert loop["verify"] == pytest.approx(3 * MS, rel=0.01)
        assert loop["sample"] == pytest.approx(0.2 * MS, rel=0.05)
        assert loop["other"] == pytest.approx(0.4 * MS, rel=0.05)
    assert sum(sum(loop.values()) for loop in loops) == pytest.approx(device.now_s)


def test_the_hosts_clock_alone_books_the_device_on_the_phase_that_waits() -> None:
    """The control: without events the draft seems to cost what its launches do."""
    device = VirtualDevice()
    loop = _loop(device, Stopwatch(device), host_ms=0.02, device_ms=3.0)
    assert loop["draft"] == pytest.approx(0.04 * MS)
    assert loop["sample"] > 9 * MS


@pytest.mark.parametrize(
    ("host_ms", "device_ms", "paced"),
    [
        (5.0, 0.05, {"draft": 10.0, "verify": 5.0, "sample": 0.2, "other": 0.4}),  # launches are slower
        (0.02, 3.0, {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.4}),  # the device is
    ],
)
def test_what_the_host_paces_is_known(host_ms: float, device_ms: float, paced: Mapping[str, float]) -> None:
    device = VirtualDevice()
    found = _loop(device, device.stopwatch(), host_ms, device_ms)
    assert isinstance(found, DeviceSeconds)
    shown = {phase: seconds / MS for phase, seconds in found.paced_by_host.items()}
    assert shown == pytest.approx(paced, rel=0.1, abs=0.02)


def test_a_draft_that_waits_for_the_host_before_a_target_that_does_not() -> None:
    """The target's launches go on while the device has work: only the draft's time is the host's."""
    device = VirtualDevice()
    watch = device.stopwatch()
    device.launch(1 * MS, host_s=4 * MS)
    device.launch(0.1 * MS, host_s=0.9 * MS)
    watch.lap("draft")
    device.launch(30 * MS, host_s=15 * MS)
    watch.lap("verify")
    device.launch(0.1 * MS)
    device.wait()
    watch.lap("sample")
    found = watch.take()
    assert isinstance(found, DeviceSeconds)
    assert {phase for phase, seconds in found.paced_by_host.items() if seconds} == {"draft"}


def test_events_that_were_read_are_used_again() -> None:
    device = VirtualDevice()
    watch = device.stopwatch()
    for _ in range(50):
        assert _loop(device, watch, 0.02, 3.0)["draft"] > 0
    assert device.events <= 2 * 6


def test_loops_may_be_read_in_any_order_and_again() -> None:
    device = VirtualDevice()
    watch = device.stopwatch()
    loops = [_loop(device, watch, 0.02, 1.0 + number) for number in range(4)]
    found = [loops[number]["verify"] for number in (2, 0, 3, 1, 0)]
    assert found == pytest.approx([3 * MS, 1 * MS, 4 * MS, 2 * MS, 1 * MS], rel=0.02)


def test_on_a_device_skipped_time_belongs_to_no_phase() -> None:
    device = VirtualDevice()
    watch = device.stopwatch()
    first = _loop(device, watch, 0.02, 1.0)
    device.compute(500 * MS)  # what a full buffer takes to flush
    assert watch.skip() == pytest.approx(500 * MS)
    second = _loop(device, watch, 0.02, 1.0)
    assert dict(second) == pytest.approx(dict(first))

"""What is taken on a GPU, over a made-up NVML: a throttled timing is a disturbed timing."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench import environment
from spsbench.gpu_takers import GpuTakers, gpu_watched
from spsbench.records import Generation, Sample
from spsbench.store.codec import encode_sample
from spsbench.store.timings import Timing, shares_lost

OTHER = 4_000_000


class Nvml:
    """A driver with three reasons to hold clocks down, and samples of two processes."""

    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL, NVML_PERF_POLICY_BOARD_LIMIT = 0, 1, 3
    NVML_PERF_POLICY_RELIABILITY = 5

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.held_ns = {0: 9_000_000_000, 1: 0, 3: 0}
        self.running = [os.getpid(), OTHER]
        self.samples: list[Any] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError(uuid)
        return uuid

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:
        if policy not in self.held_ns:
            raise self.NVMLError("not supported")
        return SimpleNamespace(violationTime=self.held_ns[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.running]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since_us: int) -> list[Any]:
        found = [sample for sample in self.samples if sample.timeStamp > since_us]
        if not found:
            raise self.NVMLError("not found")
        return found

    def sample(self, pid: int, at_s: float, percent: int) -> None:
        self.samples.append(SimpleNamespace(pid=pid, timeStamp=round(1e6 * at_s), smUtil=percent))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)  # type: ignore[arg-type]
    return found


def test_clocks_that_heat_holds_down_count_and_a_power_limit_does_not(nvml: Nvml) -> None:
    takers = GpuTakers(nvml, "GPU-1")
    assert takers.throttled_s() == 0.0
    nvml.held_ns[1] += 250_000_000
    nvml.held_ns[0] += 5_000_000_000
    assert takers.throttled_s() == 0.25
    nvml.held_ns.clear()
    assert takers.throttled_s() is None


def test_what_others_compute_counts_by_their_share(nvml: Nvml) -> None:
    takers = GpuTakers(nvml, "GPU-1")
    assert takers.shared_s() is None
    for at_s in (1.0, 1.2, 1.4):
        nvml.sample(OTHER, at_s, 50)
        nvml.sample(os.getpid(), at_s, 50)
    assert takers.shared_s() == pytest.approx(0.5 * 0.4)
    assert takers.shared_s() == pytest.approx(0.5 * 0.4)  # no sample since
    nvml.sample(OTHER, 1.6, 100)
    assert takers.shared_s() == pytest.approx(0.4)


def test_a_driver_with_other_numbers_for_processes_knows_of_none(nvml: Nvml) -> None:
    nvml.running = [17, OTHER]
    nvml.sample(17, 1.0, 100)
    assert GpuTakers(nvml, "GPU-1").shared_s() is None


def test_a_throttled_timing_is_a_disturbed_one(nvml: Nvml) -> None:
    made = Generation([1], "x", None, 0.0, 1.0, "stop")
    with gpu_watched("GPU-1"):
        before = environment.taken()
        nvml.held_ns[1] += 300_000_000
        lost = environment.taken_since(before)
    assert lost["throttled_s"] == pytest.approx(0.3)
    sample = Sample("e", 0, "ars", 1, made, conditions=lost)
    assert shares_lost([Timing.of(encode_sample(sample))]) == [pytest.approx(0.3)]
    assert "throttled_s" not in environment.TAKERS


@pytest.mark.parametrize("uuid", [None, "GPU-2"])
def test_no_board_or_no_answer_counts_nothing(nvml: Nvml, uuid: str | None) -> None:
    before = set(environment.TAKERS)
    with gpu_watched(uuid):
        assert set(environment.TAKERS) == before

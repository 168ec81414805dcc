"""What took a GPU's time from a run, as its driver counts it: clocks held down, and other processes.

A power limit is left out: at full load it is the run's own doing. Nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import psutil

from spsbench.environment import TAKERS

_POLICIES = ("NVML_PERF_POLICY_THERMAL", "NVML_PERF_POLICY_BOARD_LIMIT", "NVML_PERF_POLICY_RELIABILITY")
"""Why clocks are below those that were set, without the run's doing."""

_LONGEST_S = 1.0
"""A sample of utilisation stands for so long at most; the driver takes several a second."""


class GpuTakers:
    """Seconds that were taken on one board, each counted from some moment on."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._seen_us: dict[int, int] = {}
        self._shared_s = 0.0

    def throttled_s(self) -> float | None:
        """Seconds that heat, the board's limits or its reliability held the clocks down; None if unknown."""
        nvml, found_ns = self._nvml, []
        for policy in _POLICIES:
            with suppress(nvml.NVMLError, AttributeError):
                status = nvml.nvmlDeviceGetViolationStatus(self._handle, getattr(nvml, policy))
                found_ns.append(status.violationTime)
        return sum(found_ns) / 1e9 if found_ns else None

    def shared_s(self) -> float | None:
        """Seconds that other processes computed there, by samples of the driver; None if unknown.

        In a container the driver may give processes numbers of its host: then none is known to be another.
        """
        nvml, own = self._nvml, _family()
        try:
            running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
            if not own & running:
                return None
            since_us = max(self._seen_us.values(), default=0)
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
        except nvml.NVMLError:  # also where there is no sample since the last look
            return self._shared_s if self._seen_us else None
        for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
            before_us = self._seen_us.get(sample.pid, sample.timeStamp)
            self._seen_us[sample.pid] = sample.timeStamp
            if sample.pid not in own:
                lasted_s = min((sample.timeStamp - before_us) / 1e6, _LONGEST_S)
                self._shared_s += sample.smUtil / 100 * lasted_s
        return self._shared_s


def _family() -> set[int]:
    """This process and those that it started."""
    with suppress(psutil.Error):
        return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return {os.getpid()}


@contextmanager
def gpu_watched(uuid: str | None) -> Iterator[None]:
    """``environment.taken`` counts what is taken on a board, too, as far as NVML says it; None for no
    board."""
    takers = None if uuid is None else _open(uuid)
    if takers is not None:
        TAKERS.update(throttled_s=takers.throttled_s, shared_s=takers.shared_s)
    try:
        yield
    finally:
        for name in ("throttled_s", "shared_s"):
            TAKERS.pop(name, None)


def _open(uuid: str) -> GpuTakers | None:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return GpuTakers(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None

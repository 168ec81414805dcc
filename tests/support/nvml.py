"""NVML of a board that is not there."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

OTHER = 4_000_000
"""The number of a process that is not ours."""


class Nvml:
    """The package nvidia-ml-py over a driver with three reasons to hold clocks down and two processes."""

    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL, NVML_PERF_POLICY_BOARD_LIMIT = 0, 1, 3
    NVML_PERF_POLICY_RELIABILITY = 5

    class NVMLError(Exception):
        pass

    def __init__(self, *known: str) -> None:
        self.held_ns = {0: 9_000_000_000, 1: 0, 3: 0}
        self.running = [os.getpid(), OTHER]
        self.samples: list[Any] = []
        self.known = ("GPU-1", "MIG-7", *known)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.known:
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

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"535.183.01"  # as old versions of the package answer

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        if handle.startswith("GPU-"):
            raise self.NVMLError("Invalid Argument")
        return "GPU-1"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=10 << 30 if handle.startswith("MIG-") else 80 << 30)

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        return self.of_board(handle, 600_000)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self.of_board(handle, {1: 1410, 2: 2619}[kind])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self.of_board(handle, 71)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.of_board(handle, 0x4 | 0x40 | 0x1)

    def of_board(self, handle: str, value: int) -> int:
        if not handle.startswith("GPU-"):
            raise self.NVMLError("Invalid Argument")
        return value

    def sample(self, pid: int, at_s: float, percent: int) -> None:
        self.samples.append(SimpleNamespace(pid=pid, timeStamp=round(1e6 * at_s), smUtil=percent))

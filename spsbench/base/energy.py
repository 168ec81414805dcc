"""Joules, where a machine counts them: RAPL for its processors, NVML for an NVIDIA GPU.

Both count for the whole package or board, whatever works on it and also while idle: a difference of
two readings holds what idles and what other processes draw. Nothing heavy is imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spsbench.base.gpu import NoNvml, nvml_of
from spsbench.base.messages import NVML_STANDS_STILL, RAPL_STANDS_STILL, RaplUnreadable

POWERCAP = Path("/sys/class/powercap")
PATIENCE_S = 0.5
"""How long a counter may stand still before it is taken to count nothing. RAPL's move every millisecond,
NVML's every 20 to 100."""
_PAUSE_S = 2e-4


class EnergyMeter(Protocol):
    """Counts joules from some moment on; ``source`` says what counts, and of what, e.g. ``RAPL (package-0,
    dram)``."""

    source: str

    def joules(self) -> float | None:
        """Joules since it was opened, never fewer than before; None where it cannot be read now."""


@dataclass(frozen=True, slots=True)
class FoundMeter:
    """A meter, or why there is none; ``update_s``: seconds between two moves of its counter, as seen when it
    was opened."""

    meter: EnergyMeter | None
    update_s: float | None
    reason: str

    def record(self) -> dict[str, Any]:
        if self.meter is None:
            return {"source": None, "update_s": None, "reason": self.reason}
        return {"source": self.meter.source, "update_s": self.update_s, "reason": None}


def _none(reason: str) -> FoundMeter:
    return FoundMeter(None, None, reason)


def find_rapl(root: Path = POWERCAP) -> FoundMeter:
    """Find the energy counters of this machine's processors (Intel and AMD)."""
    folders = _zones(root)
    if not folders:
        return _none("no RAPL counters")
    try:
        zones = [_Zone(folder, name) for folder, name in folders]
    except (OSError, ValueError) as problem:
        return _none(str(RaplUnreadable(problem)))
    return counting(RaplMeter(zones), RAPL_STANDS_STILL)


def _zones(root: Path) -> list[tuple[Path, str]]:
    """List (folder, name) of the packages and of the memory beside them, each once.

    Packages and their memory add up. Core and uncore are parts of a package, and psys contains them all. A
    processor may be there twice, by its registers and by mapped memory (``intel-rapl-mmio``): the former.
    """
    folder_of: dict[str, Path] = {}
    mapped = "intel-rapl-mmio"
    for folder in sorted(root.glob("intel-rapl*:*"), key=lambda path: (path.name.startswith(mapped), path)):
        name = _text(folder / "name")
        parent = _text(root / folder.name.rpartition(":")[0] / "name")
        if name.startswith("package"):
            folder_of.setdefault(name, folder)
        elif name == "dram" and parent.startswith("package"):
            folder_of.setdefault(f"dram of {parent}", folder)
    return [(folder, name) for name, folder in folder_of.items()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class _Zone:
    """One counter that wraps around, and what it has counted since it was opened."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = int(self._counter.read_text())
        self._total_uj = 0

    def read_uj(self) -> int:
        """Return the counter in microjoules; between calls it may wrap around once, which takes minutes."""
        now = int(self._counter.read_text())
        moved = now - self._last_uj
        self._total_uj += moved if moved >= 0 else moved + self._range_uj
        self._last_uj = now
        return self._total_uj


class RaplMeter:
    """The sum of some RAPL zones that do not contain each other."""

    def __init__(self, zones: list[_Zone]) -> None:
        self._zones = zones
        self.source = f"RAPL ({', '.join(zone.name for zone in zones)})"

    def joules(self) -> float | None:
        try:
            return sum(zone.read_uj() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


def find_nvml(uuid: str | None = None) -> FoundMeter:
    """Find the energy counter of an NVIDIA GPU; it needs the package nvidia-ml-py."""
    try:
        nvml, handle = nvml_of(uuid)
    except NoNvml as reason:
        return _none(str(reason))
    try:
        meter = NvmlMeter(nvml, handle)
    except nvml.NVMLError as problem:
        return _none(f"NVML: {problem}")
    return counting(meter, NVML_STANDS_STILL)


class NvmlMeter:
    """A GPU's board, by its driver's counter."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.source = f"NVML ({nvml.nvmlDeviceGetName(handle)}, the board alone)"
        self._first_mj: int = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def joules(self) -> float | None:
        try:
            now_mj: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._nvml.NVMLError:
            return None
        return (now_mj - self._first_mj) / 1e3


def counting(
    meter: EnergyMeter,
    otherwise: str,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> FoundMeter:
    """Wait until a meter's counter has moved twice; refuse one that stands still, which would report 0 J."""
    moves = []
    for _ in range(2):
        before, began = meter.joules(), clock()
        while (now := meter.joules()) is None or before is None or now <= before:
            if clock() - began > PATIENCE_S:
                return _none(otherwise)
            before = now if before is None else before
            sleep(_PAUSE_S)
        moves.append(clock())
    return FoundMeter(meter, moves[1] - moves[0], "")

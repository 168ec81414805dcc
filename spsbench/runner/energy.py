"""The energy of each sequence of a run, where the machine counts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from spsbench.energy import EnergyMeter, FoundMeter, find_nvml, find_rapl
from spsbench.stats.energy import ENERGY

T = TypeVar("T")


def meter_of(device: torch.device, processes: int = 1, *, placed: bool = False) -> FoundMeter:
    """What counts the energy of a device: of a GPU its own board, of a CPU the packages and their memory."""
    if placed:
        return FoundMeter(None, None, "a device map puts the target on devices of which one alone is counted")
    if device.type == "cpu":
        return find_rapl()
    if processes > 1:
        return FoundMeter(None, None, f"the target is split over {processes} boards; one alone is counted")
    if device.type != "cuda":
        return FoundMeter(None, None, f"nothing counts for a device of the kind {device.type}")
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return find_nvml(None if uuid is None else f"GPU-{uuid}")


def noted(found: FoundMeter, info: Mapping[str, Any]) -> dict[str, Any]:
    """For ``run.json``: what counts now, or what counted when the run began and does no longer."""
    before: dict[str, Any] = info.get("energy") or {}
    return before if found.meter is None and before.get("source") else found.record()


def metered(generate: Callable[[], T], meter: EnergyMeter | None) -> tuple[T, dict[str, float]]:
    """(what ``generate`` answers, its joules under the name that a sequence keeps them by, if known).

    The next answer of a batch takes what all rows drew since the last one: only their sum means something.
    """
    before = None if meter is None else meter.joules()
    made = generate()
    after = None if meter is None else meter.joules()
    if before is None or after is None or after < before:
        return made, {}
    return made, {ENERGY: after - before}

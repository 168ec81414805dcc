"""Seconds of a forward, and the speedup of SpS, from a data sheet and published measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from spsbench.records import Interval
from spsbench.whatif.hardware.decoder import Decoder

Floats = npt.NDArray[np.float64]

OVERLAP = (2.0, 1.5, 3.0)
"""Typical, low, high: reading takes x, computing y, both together (x^p + y^p)^(1/p). See docs/hardware.md."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Peak(_Row):
    """Of the data sheet: bytes/s, dense FLOP/s, bytes."""

    bandwidth: PositiveFloat
    flops: PositiveFloat
    memory: PositiveFloat
    source: str = Field(min_length=10)


class Figure(_Row):
    """Measured; ``borrowed`` names the accelerator on which, where it was not on this one."""

    low: PositiveFloat
    typical: PositiveFloat
    high: PositiveFloat
    width_us: float = Field(0.0, ge=0)
    source: str | list[str] = Field(min_length=1)
    borrowed: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> Figure:
        if not self.low <= self.typical <= self.high:
            raise ValueError("low, typical and high are not in order")
        return self

    @property
    def values(self) -> tuple[float, float, float]:
        return self.typical, self.low, self.high


class Accelerator(_Row):
    """One row of accelerators.yaml, which says what its figures are."""

    title: str
    peak: Peak
    bandwidth: Figure
    compute: Figure
    floor: Figure

    @property
    def borrowed(self) -> Mapping[str, str]:
        """The lender by figure."""
        figures = {"bandwidth": self.bandwidth, "compute": self.compute, "floor": self.floor}
        return {name: figure.borrowed for name, figure in figures.items() if figure.borrowed}

    def corners(self) -> Iterator[Corner]:
        """The typical machine, then every combination of low and high figures."""
        figures = self.bandwidth.values, self.compute.values, self.floor.values, OVERLAP
        for read, compute, floor, overlap in [
            tuple(each[0] for each in figures),
            *product(*(each[1:] for each in figures)),
        ]:
            speeds = read * self.peak.bandwidth, compute * self.peak.flops
            yield Corner(*speeds, floor * 1e-6, self.floor.width_us * 1e-6 / 1024, overlap)


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """By name."""
    with Path(__file__).with_name("accelerators.yaml").open(encoding="utf-8") as file:
        table: dict[str, Any] = yaml.safe_load(file)
    rows = {name: row for name, row in table.items() if not name.startswith(".")}
    return {name: Accelerator.model_validate(_lent(row, rows)) for name, row in rows.items()}


def _lent(row: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the figures that it borrows, whose ends are as far again from typical."""
    found = dict(row)
    for name, figure in row.items():
        if isinstance(figure, Mapping) and (lender := figure.get("borrowed")):
            own = rows[lender][name]
            ends = {end: own[end] ** 2 / own["typical"] for end in ("low", "high")}
            found[name] = {**own, **ends, "borrowed": lender}
    return found


@dataclass(frozen=True, slots=True)
class Corner:
    """A machine: bytes/s, FLOP/s, seconds of a layer and of its width, exponent of the overlap."""

    bandwidth: float
    flops: float
    layer_s: float
    width_s: float
    overlap: float

    def forward_s(self, model: Decoder, batch: Floats, tokens: int, context: int) -> Floats:
        """[n] seconds of a forward of so many tokens of each of ``batch`` [n] sequences."""
        reading = (model.read_bytes + batch * context * model.cache_bytes) / self.bandwidth
        computing = batch * tokens * model.flops(context) / self.flops
        floor = model.layers * (self.layer_s + self.width_s * model.hidden)
        found: Floats = floor + (reading**self.overlap + computing**self.overlap) ** (1 / self.overlap)
        return found

    def loop_s(self, target: Decoder, draft: Decoder, batch: Floats, k: int, context: int) -> Floats:
        """[n] seconds of a loop: K forwards of the draft, one of K + 1 tokens of the target."""
        drafting = k * self.forward_s(draft, batch, 1, context)
        return drafting + self.forward_s(target, batch, k + 1, context)


@dataclass(frozen=True, slots=True)
class Band:
    """[n] by batch: with typical figures, and the least and most of all combinations of their ends."""

    estimate: Floats
    low: Floats
    high: Floats

    def at(self, place: int) -> Interval:
        return Interval(*(float(each[place]) for each in (self.estimate, self.low, self.high)))


def speedups(
    machine: Accelerator,
    models: tuple[Decoder, Decoder],
    tokens: Mapping[int, Interval],
    batch: Floats,
    context: int,
) -> dict[int, Band]:
    """PREDICTED speedup over ArS by K, for target and draft, from tokens per loop by K."""
    typical, *ends = machine.corners()

    def gain(corner: Corner, k: int) -> Floats:
        found: Floats = corner.forward_s(models[0], batch, 1, context) / corner.loop_s(
            *models, batch, k, context
        )
        return found

    found = {}
    for k, length in tokens.items():
        gains = np.array([gain(corner, k) for corner in ends])
        low, high = (length.estimate if end is None else end for end in (length.low, length.high))
        band = gains.min(0) * low, gains.max(0) * high
        found[k] = Band(length.estimate * gain(typical, k), *band)
    return found


def best(bands: Mapping[int, Band]) -> Band:
    """Of the K that is best at each batch size."""
    each = list(bands.values())
    ends = ([band.estimate for band in each], [band.low for band in each], [band.high for band in each])
    return Band(*(np.max(end, axis=0) for end in ends))


def slower_from(gain: Floats, batch: Floats) -> int | None:
    """The first batch size at which SpS is slower than ArS; None where it is not."""
    below = np.flatnonzero(gain < 1)
    return int(batch[below[0]]) if len(below) else None


def fitting(machine: Accelerator, models: tuple[Decoder, Decoder], context: int) -> int:
    """How many sequences of this length fit into memory beside the weights."""
    free = machine.peak.memory - sum(model.weight_bytes for model in models)
    return max(0, int(free // (context * sum(model.cache_bytes for model in models))))

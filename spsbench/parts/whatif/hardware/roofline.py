"""Seconds of a forward and the speedup of SpS, PREDICTED from data sheets and published measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, model_validator

from spsbench.base import Floats, Interval
from spsbench.parts.whatif.hardware.decoder import Decoder

Models = tuple[Decoder, Decoder]
"""Target and draft."""


class _Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Peak(_Figures):
    bandwidth: PositiveFloat
    flops: PositiveFloat
    memory: PositiveFloat
    source: str = Field(min_length=10)


class Figure(_Figures):
    low: NonNegativeFloat
    typical: PositiveFloat
    high: PositiveFloat
    width_us: NonNegativeFloat = 0.0
    source: str | list[str] = Field(min_length=1)
    borrowed: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> Figure:
        if not self.low <= self.typical <= self.high:
            raise ValueError("low, typical and high are not in order")
        return self


class Accelerator(_Figures):
    """One row of accelerators.yaml, which says what its figures are."""

    title: str
    peak: Peak
    bandwidth: Figure
    compute: Figure
    floor: Figure
    engine: dict[str, Figure]

    def corners(self) -> list[Corner]:
        """The typical machine, then every combination of low and high figures."""
        figures = self.bandwidth, self.compute, self.floor, self.engine["overlap"], self.engine["host_ms"]
        ends = product(*((figure.low, figure.high) for figure in figures))
        peak = self.peak
        width_s = self.floor.width_us * 1e-6 / 1024
        return [
            Corner(read * peak.bandwidth, compute * peak.flops, us * 1e-6, width_s, overlap, ms * 1e-3)
            for read, compute, us, overlap, ms in [tuple(each.typical for each in figures), *ends]
        ]


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return accelerators by name; a borrowed figure has its lender's ends, twice as far from typical."""
    with Path(__file__).with_name("accelerators.yaml").open(encoding="utf-8") as file:
        rows: dict[str, Any] = {name: row for name, row in yaml.safe_load(file).items() if name[0] != "."}
    engine, by_name = rows.pop("engine"), {}
    for name, row in rows.items():
        fields = {"engine": engine, **row}
        for figure in ("bandwidth", "compute", "floor"):
            if lender := row[figure].get("borrowed"):
                lent = rows[lender][figure]
                ends = {end: lent[end] ** 2 / lent["typical"] for end in ("low", "high")}
                fields[figure] = {**lent, **ends, "borrowed": lender}
        by_name[name] = Accelerator.model_validate(fields)
    return by_name


class Corner(NamedTuple):
    """A machine: bytes/s, FLOP/s, seconds of a layer and of a layer's width, overlap, seconds of a loop."""

    bandwidth: float
    flops: float
    layer_s: float
    width_s: float
    overlap: float
    host_s: float

    def forward_s(self, model: Decoder, batch: Floats, tokens: int, context: int) -> Floats:
        """[n] seconds of a forward of so many tokens for each of ``batch`` [n] sequences."""
        reading = (model.read_bytes + batch * context * model.cache_bytes) / self.bandwidth
        computing = batch * tokens * model.flops(context) / self.flops
        floor = model.num_hidden_layers * (self.layer_s + self.width_s * model.hidden_size)
        seconds: Floats = floor + (reading**self.overlap + computing**self.overlap) ** (1 / self.overlap)
        return seconds

    def gain(self, models: Models, k: int, batch: Floats, context: int) -> Floats:
        """[n] tokens of ArS in a loop's time: K forwards of the draft, one of the target for K + 1 tokens."""
        target, draft = models
        loop = k * self.forward_s(draft, batch, 1, context) + self.forward_s(target, batch, k + 1, context)
        gains: Floats = self.forward_s(target, batch, 1, context) / (loop + self.host_s)
        return gains


@dataclass(frozen=True, slots=True)
class Band:
    """[n] by batch: with typical figures, and the least and most of all combinations of their ends."""

    estimate: Floats
    low: Floats
    high: Floats

    def slower_from(self, batch: Floats) -> dict[str, int | None]:
        """Return the first batch size at which SpS is slower than ArS, at each end; None where it is not."""
        below = {end: np.flatnonzero(getattr(self, end) < 1) for end in ("estimate", "low", "high")}
        return {end: int(batch[places[0]]) if len(places) else None for end, places in below.items()}


def speedups(
    machine: Accelerator, models: Models, tokens: Mapping[int, Interval], batch: Floats, context: int
) -> dict[int, Band]:
    """Return speedups over ArS by K, from tokens per loop by K, whose interval enters the band."""
    typical, *ends = machine.corners()
    bands = {}
    for k, length in tokens.items():
        gains = np.array([corner.gain(models, k, batch, context) for corner in ends])
        low, high = (length.estimate if end is None else end for end in (length.low, length.high))
        estimate = length.estimate * typical.gain(models, k, batch, context)
        bands[k] = Band(estimate, low * gains.min(0), high * gains.max(0))
    return bands


def fitting(machine: Accelerator, models: Models, context: int) -> int:
    """Return how many sequences of this length fit into memory beside the weights."""
    free = machine.peak.memory - sum(model.weight_bytes for model in models)
    return max(0, int(free // (context * sum(model.cache_bytes for model in models))))

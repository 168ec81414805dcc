"""What `advise --hardware` says of an accelerator that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spsbench.base.messages import Message

ALL_ENDS = "[]: all ends of the published figures, not 95%; their sources are in --json."


@dataclass(frozen=True, slots=True)
class PredictedFor(Message):
    accelerator: str

    def __str__(self) -> str:
        return f"PREDICTED, not measured: {self.accelerator}, 16-bit weights."


@dataclass(frozen=True, slots=True)
class SlowerFrom(Message):
    """``batch``: at the best K, as the table has it."""

    context: int
    sequences: int
    batch: str

    def __str__(self) -> str:
        return (
            f"Context {self.context:,}, up to {self.sequences:,} sequences: SpS is slower than ArS from "
            f"batch {self.batch} at the best K."
        )


@dataclass(frozen=True, slots=True)
class BatchesNotShown(Message):
    sizes: Sequence[int]

    def __str__(self) -> str:
        return f"Not shown, they do not fit with their caches: batch {', '.join(map(str, self.sizes))}."


@dataclass(frozen=True, slots=True)
class FiguresBorrowed(Message):
    """By figure the accelerator that it is from."""

    lenders: Mapping[str, str]

    def __str__(self) -> str:
        lent = ", ".join(f"{figure} of {lender}" for figure, lender in self.lenders.items())
        return f"Not measured on it, borrowed with a wider band: {lent}."


@dataclass(frozen=True, slots=True)
class NothingFaster(Message):
    accelerator: str

    def __str__(self) -> str:
        return f"# vllm: no speculation; none is PREDICTED to be faster on {self.accelerator}."


@dataclass(frozen=True, slots=True)
class KByBatchPredicted(Message):
    accelerator: str
    context: int
    sequences: int

    def __str__(self) -> str:
        scope = f"{self.accelerator}, context {self.context:,}, up to {self.sequences:,} sequences"
        return f"# K by batch size PREDICTED for {scope}: not measured."


@dataclass(frozen=True, slots=True)
class ModelElsewhere(Message):
    name: str
    configuration: str

    def __str__(self) -> str:
        return f"# {self.name}: the model that {self.configuration} is the configuration of."

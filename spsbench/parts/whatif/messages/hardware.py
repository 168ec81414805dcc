"""What `advise --hardware` says of an accelerator that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spsbench.base import Message

ALL_ENDS = "[]: all ends of the published figures, not 95%; their sources are in --json."


class PredictedFor(Message):
    accelerator: str
    sentence = "PREDICTED, not measured: {accelerator}, 16-bit weights."


class SlowerFrom(Message):
    """``batch``: at the best K, as the table has it."""

    context: int
    sequences: int
    batch: str
    sentence = (
        "Context {context:,}, up to {sequences:,} sequences: SpS is slower than ArS from "
        "batch {batch} at the best K."
    )


class BatchesNotShown(Message):
    sizes: Sequence[int]

    def __str__(self) -> str:
        return f"Not shown, they do not fit with their caches: batch {', '.join(map(str, self.sizes))}."


class FiguresBorrowed(Message):
    """By figure the accelerator that it is from."""

    lenders: Mapping[str, str]

    def __str__(self) -> str:
        lent = ", ".join(f"{figure} of {lender}" for figure, lender in self.lenders.items())
        return f"Not measured on it, borrowed with a wider band: {lent}."


class NothingFaster(Message):
    accelerator: str
    sentence = "# vllm: no speculation; none is PREDICTED to be faster on {accelerator}."


class KByBatchPredicted(Message):
    accelerator: str
    context: int
    sequences: int

    def __str__(self) -> str:
        scope = f"{self.accelerator}, context {self.context:,}, up to {self.sequences:,} sequences"
        return f"# K by batch size PREDICTED for {scope}: not measured."


class ModelElsewhere(Message):
    name: str
    configuration: str
    sentence = "# {name}: the model that {configuration} is the configuration of."

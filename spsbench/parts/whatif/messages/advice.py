"""What `advise` concludes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spsbench.base import Interval, Message
from spsbench.report import counted, interval, interval_percent, speedup
from spsbench.stats import percent
from spsbench.store import RatioInterval

TREES_NOT_RUN = "Trees were predicted and not run."
K_BY_BATCH_UNKNOWN = "# One sequence at a time. For K by batch size: --times, from spsbench bench --batch."


def slower_by(slower: Interval) -> str:
    """Return how much more time a token is taken than by what is advised."""
    low, high = (None if end is None else end - 1 for end in (slower.low, slower.high))
    return interval_percent(replace(slower, estimate=slower.estimate - 1, low=low, high=high))


class ChosenOn(Message):
    label: str
    sampling: str
    choosing: int
    judging: int

    def __str__(self) -> str:
        prompts = f"chosen on {self.choosing} prompts, measured on {self.judging} others"
        return f"{self.label}, {self.sampling}: {prompts}"


class TimesDisturbed(Message):
    """``hides``: the lost time may be more than what is gained."""

    lost: float
    hides: bool

    def __str__(self) -> str:
        lost = f"contention took {percent(self.lost)} of the time in which loops were timed"
        if self.hides:
            return f"UNDECIDED: {lost}, which may hide the answer. Repeat on an idle machine."
        return f"Widened: {lost}, and every predicted interval holds all of it."


class NothingPays(Message):
    was_run: bool

    def __str__(self) -> str:
        predicted = "" if self.was_run else "predicted to be "
        return f"Does not pay here: no drafter and K is {predicted}faster than ArS."


class Advised(Message):
    name: str
    speedup: Interval
    gains: bool

    def __str__(self) -> str:
        what = f"Use {self.name}:" if self.gains else f"No clear gain: {self.name}, the fastest,"
        return f"{what} {interval(self.speedup, 'x')} per token predicted."


class MeasuredLive(Message):
    """``name`` is empty of what is advised; ``agrees`` is unknown where times are not trusted."""

    name: str
    prompts: int
    live: RatioInterval | None
    agrees: bool | None

    def __str__(self) -> str:
        agrees = {None: "", True: ", as predicted", False: ", which does NOT agree with the prediction"}
        found = "could not be measured" if self.live is None else f"{speedup(self.live)}{agrees[self.agrees]}"
        where = f" on {counted(self.prompts, 'prompt')}" if self.prompts else ""
        name = f"{self.name}, measured" if self.name else "Measured"
        return f"{name} live beside ArS{where}: {found}."


class DoesNotFollow(Message):
    name: str
    sentence = "ALARM: {name} does not follow the target's distribution."


class CloseK(Message):
    ks: Sequence[int]

    def __str__(self) -> str:
        return f"K={', '.join(map(str, self.ks))} cannot be told apart from it."


class FasterWhereMeasured(Message):
    name: str
    sentence = "{name} was faster on the measuring prompts: more prompts would decide between the two."


class DraftingAllowed(Message):
    """In ArS steps a token."""

    allowed: float
    now: float
    sentence = "Break-even: drafting a token may take {allowed:.2f} ArS steps (now {now:.2f})."


class WithoutBlock(Message):
    name: str
    slower: Interval

    def __str__(self) -> str:
        return f"Without block verification ({self.name}) it is predicted {slower_by(self.slower)} slower."


class CellsTooLarge(Message):
    names: Sequence[str]

    def __str__(self) -> str:
        return f"Left out, too large for --memory: {', '.join(self.names)}."


class ProofTooLong(Message):
    """Of a prompt; times as they are read."""

    proof: str
    left: str
    sentence = (
        "Not run: the proof of a prompt takes about {proof}, and {left} of --budget are left. "
        "Give more, shorter prompts, or --no-check."
    )


class LoopsRunEager(Message):
    engine: str
    sentence = (
        "All loops run kernel by kernel, as with run --engine {engine}: of the drafters to compare "
        "only model has CUDA graphs."
    )


class NoSpeculation(Message):
    engine: str
    sentence = "# {engine}: no speculation; none that it has is predicted to be faster."


class NoDrafterOfEngine(Message):
    engine: str
    sentence = "# {engine} has none of these drafters."


class Worth(Message):
    name: str
    speedup: Interval

    def __str__(self) -> str:
        return f"# {self.name}: {interval(self.speedup, 'x')} per token, predicted here."


class FasterElsewhere(Message):
    name: str
    engine: str
    sentence = "# {name} is faster here, and {engine} does not have it."


class KByBatchOf(Message):
    times: Path
    sentence = "# K by batch size: forwards of {times}, tokens per loop of these texts."

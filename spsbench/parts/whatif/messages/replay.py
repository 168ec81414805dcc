"""What `replay` says of cells, policies and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spsbench.base import Interval
from spsbench.base.messages import Message
from spsbench.report import interval, interval_percent, percent
from spsbench.stats import from_alpha

PREDICTED = "Predicted: no sequence was generated for these numbers."
LOOPS_RUN_HERE = "Times are of loops run here."
PARTS_TIMED_HERE = "Times are of loops run here in parts, a tree's as of a chain of as many rows."


@dataclass(frozen=True, slots=True)
class ForwardsElsewhere(Message):
    models: str
    context: int

    def __str__(self) -> str:
        return (
            f"Times are of forwards alone, {self.models}, after {self.context:,} tokens of context; what "
            "else a loop does is not in them."
        )


@dataclass(frozen=True, slots=True)
class TextsReplayed(Message):
    label: str
    sampling: str
    texts: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.label}, {self.sampling}: replayed over {self.texts} texts, {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class CurveOfTexts(Message):
    label: str
    sampling: str
    texts: int

    def __str__(self) -> str:
        return f"{self.label}, {self.sampling}: acceptance length from one reading of {self.texts} texts"


@dataclass(frozen=True, slots=True)
class GainsFrom(Message):
    """Of one cell; costs are in ArS steps, ``c`` that of drafting a token."""

    name: str
    k: int
    cost: float
    alpha: float | None
    c: float
    c_allowed: float | None

    def __str__(self) -> str:
        cell, cost = f"{self.name}, K={self.k}", f"takes {self.cost:.2f} ArS steps a loop"
        if self.alpha is None:
            return f"{cell} {cost}, which no alpha pays for."
        if self.c_allowed is None:
            return f"{cell} {cost}, and gains {from_alpha(self.alpha)}."
        return (
            f"{cell} gains {from_alpha(self.alpha)}, and while drafting a token takes less than "
            f"{self.c_allowed:.2f} ArS steps (now {self.c:.2f})."
        )


@dataclass(frozen=True, slots=True)
class TokensReadAgain(Message):
    """``saved``: the share of the time a token."""

    saved: float
    name: str
    k: int

    def __str__(self) -> str:
        return (
            "The target reads accepted tokens again after a rejection (replay). An engine that keeps its "
            f"states would take {percent(self.saved)} less time a token: {self.name}, K={self.k}."
        )


@dataclass(frozen=True, slots=True)
class PolicyChosen(Message):
    policy: object
    chosen_on: int
    gain: Interval
    fixed_k: int
    judged_on: int

    def __str__(self) -> str:
        return (
            f"{self.policy}, chosen on {self.chosen_on} prompts: {interval(self.gain, 'x')} as fast as the "
            f"best fixed K, {self.fixed_k}, on {self.judged_on} others."
        )


@dataclass(frozen=True, slots=True)
class ShareOfOracle(Message):
    fixed_k: int
    fixed: Interval
    policy: object
    adaptive: Interval

    def __str__(self) -> str:
        return (
            f"Of the time that the oracle saves there over ArS, fixed K={self.fixed_k} already saves "
            f"{interval_percent(self.fixed)}, {self.policy} {interval_percent(self.adaptive)}."
        )


@dataclass(frozen=True, slots=True)
class PolicyRan(Message):
    policy: object
    tokens_per_loop: float

    def __str__(self) -> str:
        return f"In the run {self.policy} emitted {self.tokens_per_loop:.2f} tokens per loop."


@dataclass(frozen=True, slots=True)
class DraftsSampled(Message):
    drafts: int

    def __str__(self) -> str:
        return (
            "Tokens per loop are exact given the texts. What is drafted after rejected tokens is sampled "
            f"({self.drafts:,} drafts); in brackets its bounds."
        )


@dataclass(frozen=True, slots=True)
class OracleBounds(Message):
    k: int

    def __str__(self) -> str:
        return f"No policy with drafts of up to {self.k} tokens is faster than the oracle."


@dataclass(frozen=True, slots=True)
class PoliciesCost(Message):
    """Milliseconds of a loop, by policy."""

    beyond_ms: Mapping[str, Interval]

    def __str__(self) -> str:
        costs = ", ".join(f"{name} {_signed(ms)}" for name, ms in self.beyond_ms.items())
        return f"Time of a loop beyond a fixed K with as many drafts, in ms: {costs}; charged if above 0."


def _signed(value: Interval) -> str:
    ends = "" if value.low is None else f" [{value.low:+.2f}, {value.high:+.2f}]"
    return f"{value.estimate:+.2f}{ends}"

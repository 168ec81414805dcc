"""What `replay` says of cells, policies and times."""

from __future__ import annotations

from collections.abc import Mapping

from spsbench.base import Interval, Message
from spsbench.report import interval, interval_percent, percent

PREDICTED = "Predicted: no sequence was generated for these numbers."
LOOPS_RUN_HERE = "Times are of loops run here."
PARTS_TIMED_HERE = "Times are of loops run here in parts, a tree's as of a chain of as many rows."


class ForwardsElsewhere(Message):
    models: str
    context: int
    sentence = (
        "Times are of forwards alone, {models}, after {context:,} tokens of context; what "
        "else a loop does is not in them."
    )


class TextsReplayed(Message):
    label: str
    sampling: str
    texts: int
    tokens: int
    sentence = "{label}, {sampling}: replayed over {texts} texts, {tokens:,} tokens"


class CurveOfTexts(Message):
    label: str
    sampling: str
    texts: int
    sentence = "{label}, {sampling}: acceptance length from one reading of {texts} texts"


class GainsFrom(Message):
    """Of one cell; costs are in ArS steps, ``c`` that of drafting a token."""

    name: str
    k: int
    cost: float
    alpha: float | None
    c: float
    c_allowed: float | None

    def __str__(self) -> str:
        from spsbench.stats import from_alpha

        cell, cost = f"{self.name}, K={self.k}", f"takes {self.cost:.2f} ArS steps a loop"
        if self.alpha is None:
            return f"{cell} {cost}, which no alpha pays for."
        if self.c_allowed is None:
            return f"{cell} {cost}, and gains {from_alpha(self.alpha)}."
        return (
            f"{cell} gains {from_alpha(self.alpha)}, and while drafting a token takes less than "
            f"{self.c_allowed:.2f} ArS steps (now {self.c:.2f})."
        )


class StatesWouldSave(Message):
    """``saved``: the share of the time a token."""

    saved: float
    name: str
    k: int

    def __str__(self) -> str:
        return (
            "The target reads accepted tokens again after a rejection (replay). An engine that keeps its "
            f"states would take {percent(self.saved)} less time a token: {self.name}, K={self.k}."
        )


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


class PolicyRan(Message):
    policy: object
    tokens_per_loop: float
    sentence = "In the run {policy} emitted {tokens_per_loop:.2f} tokens per loop."


class DraftsSampled(Message):
    drafts: int
    sentence = (
        "Tokens per loop are exact given the texts. What is drafted after rejected tokens is sampled "
        "({drafts:,} drafts); in brackets its bounds."
    )


class OracleBounds(Message):
    k: int
    sentence = "No policy with drafts of up to {k} tokens is faster than the oracle."


class PoliciesCost(Message):
    """Milliseconds of a loop, by policy."""

    beyond_ms: Mapping[str, Interval]

    def __str__(self) -> str:
        costs = ", ".join(f"{name} {_signed(ms)}" for name, ms in self.beyond_ms.items())
        return f"Time of a loop beyond a fixed K with as many drafts, in ms: {costs}; charged if above 0."


def _signed(value: Interval) -> str:
    ends = "" if value.low is None else f" [{value.low:+.2f}, {value.high:+.2f}]"
    return f"{value.estimate:+.2f}{ends}"

"""Verdicts on losslessness, what they rest on, and how baselines and acceptance are to be taken."""

from __future__ import annotations

import math

from spsbench.base.messages import Message
from spsbench.report import wording
from spsbench.report.wording import NOTHING, counted
from spsbench.stats.losslessness import bounds
from spsbench.stats.messages import percent
from spsbench.stats.messages.evidence import UNBOUNDED
from spsbench.store.summary_types import AdaptiveGain, Leakage

LEAKAGE = "the share of tokens that follow the draft instead of the target"
"""What leakage is, where it first stands."""


def share(value: float | None) -> str:
    """A small share as a percentage with two digits, see ``percent``; a dash for none."""
    return NOTHING if value is None else percent(value)


def bound(value: float) -> str:
    """A share as a percentage, rounded up to two digits: an upper bound must stay one."""
    if not bounds(value):
        return NOTHING
    percentage = 100 * value
    if percentage <= 0:
        return "0%"
    unit = 10.0 ** (math.floor(math.log10(percentage)) - 1)
    return f"{math.ceil(percentage / unit - 1e-9) * unit:.3g}%"


def leak(leakage: Leakage | None) -> str:
    """``0.31% [0%, 1.2%]``, or a dash."""
    if leakage is None:
        return NOTHING
    return f"{share(leakage['estimate'])} [{share(leakage['low'])}, {share(leakage['high'])}]"


def distance(value: float) -> str:
    """A mean total variation as a percentage."""
    return "below 0.001%" if value < 1e-5 else share(value)


def worded(name: str, leakage_bound: float | None) -> str:
    """Word a verdict on losslessness; "ok" never stands without the bound that it rests on, if any."""
    if name != "ok" or leakage_bound is None:
        return name
    if not bounds(leakage_bound):
        return f"ok: no alarm; {UNBOUNDED}"
    return f"ok: no sign of a leak above {bound(leakage_bound)}"


# --- the baseline, and what bounds it ---


class WeakBaseline(Message):
    """ArS at so small a share of its bandwidth floor; ``graphs``: they are a remedy."""

    share: float
    graphs: bool = False

    def __str__(self) -> str:
        text = f"Weak baseline: ArS reaches {100 * self.share:.0f}% of its bandwidth floor."
        return text + (_GRAPHS if self.graphs else "")


class LaunchBound(Message):
    """The least and the largest share of a loop in which the device waits for the host."""

    low: float
    high: float
    graphs: bool = False

    def __str__(self) -> str:
        ends = dict.fromkeys(f"{end:.0%}" for end in (self.low, self.high))
        text = f"Launch-bound: {' to '.join(ends)} of a loop is the host, for which the device waits."
        return text + (_GRAPHS if self.graphs else "")


_GRAPHS = " --engine graphed launches a loop at once."


class WeightsInCache(Message):
    """``shared``: a hypervisor reports the cache, and other guests may share it."""

    shared: bool

    def __str__(self) -> str:
        saved = "SpS saves the overhead of calls rather than memory traffic"
        if not self.shared:
            return f"The weights fit in the last-level cache: {saved}."
        return (
            "The weights fit in the last-level cache that the hypervisor reports. If all of it is available "
            f"to this process, {saved}."
        )


class PolicyAgainstFixedK(Message):
    """What a policy made of K, over the fastest fixed K."""

    arm: AdaptiveGain

    def __str__(self) -> str:
        arm = self.arm
        return (
            f"{arm['policy']} took {wording.milliseconds(arm['ms_per_token'])} ms/token: "
            f"{wording.speedup(arm['gain'])} as fast as the fastest fixed K, K={arm['fixed_k']}."
        )


class AboveOptimumByRule(Message):
    arm: str
    sentence = "{arm}: above 100% of the optimum, by a lossy rule."


class AboveOptimumByChance(Message):
    """``outside``: an arm's whole interval is above."""

    outside: bool

    def __str__(self) -> str:
        return (
            "Above 100% of the optimum by chance: what is accepted is drawn, and the optimum is its mean "
            "under the best lossless rule."
            + (" One interval in forty lies above 100%." if self.outside else "")
        )


# --- verdicts ---

NO_EVIDENCE = "Losslessness: no evidence was recorded."
NO_EXACT_SEARCH = "Beam search: nothing to compare with, exact beam search was not run."


class Alarm(Message):
    arm: str
    sentence = "ALARM: {arm}, does not follow the target's distribution."


class SequencesUnread(Message):
    count: int

    def __str__(self) -> str:
        counts = counted(self.count, "sequence")
        return f"{counts} could not be read again: their times count, the journal has the errors."


class LossyArm(Message):
    """An arm with a lossy rule; ``refuted``: its rule claims to be lossless."""

    arm: str
    refuted: bool
    leakage: Leakage | None

    def __str__(self) -> str:
        named = "it claims to be lossless and is not" if self.refuted else "lossy by design"
        cost = "its leakage was not measured" if self.leakage is None else f"leakage {leak(self.leakage)}"
        return f"{self.arm}: {named}; {cost}."


class SearchesCompared(Message):
    """With exact beam search; ``allowance``: in nats what counts as rounding, where that is not little."""

    prompts: int
    identical: int
    rounding: int
    contradicted: int
    allowance: float | None

    def __str__(self) -> str:
        text = f"identical on all {self.prompts} prompts (hypotheses and scores)"
        if self.identical < self.prompts:
            text = (
                f"identical on {self.identical} of {self.prompts} prompts; {self.rounding} differ within "
                f"rounding, {self.contradicted} beyond it"
            )
        if self.allowance is not None:
            text += f"; weak evidence: in 16 bit up to {self.allowance:.2g} nats count as rounding"
        return f"Beam search: {text}. tokens/loop counts steps of the search."


class RowDistances(Message):
    """Mean total variation of an arm's rows from an independent forward's.

    Attributes:
        ars: of ArS's rows; None where they were not compared.
        rounding: what rounding alone does; None where it was not measured.
        unmeasured: whether it ought to have been.
        experts, index: share of rows for which another block chooses another expert, or key of an index.
    """

    apart: float
    ars: float | None
    rounding: float | None
    unmeasured: bool
    experts: float
    index: float

    def __str__(self) -> str:
        beside = [] if self.ars is None else [f"ArS {distance(self.ars)}"]
        beside += [] if self.rounding is None else [f"rounding alone {distance(self.rounding)}"]
        brackets = f" ({', '.join(beside)})" if beside else ""
        text = f"these lie {distance(self.apart)}{brackets} from an independent forward"
        text += ", and what rounding alone does was not measured" if self.unmeasured else ""
        for words, chosen in (("experts flip", self.experts), ("the index picks other keys", self.index)):
            if chosen > 0:
                text += f"; {words} in {share(chosen)} of rows when the same text is read in other blocks"
        return text


class DecisionsConfirmed(Message):
    """How many decisions follow, as a clause.

    Attributes:
        open: made in the drafter's own way.
        rows: where every arm's rows were kept, how far these are from an independent forward.
        unread: whether no independent forward has read some, and no rows were kept.
        drafts: of which drafters the rows are as recorded; None of no drafter, () of all of them.
    """

    decisions: int
    rounding: int
    open: int
    dtype: str
    rows: RowDistances | None
    unread: bool = False
    drafts: tuple[str, ...] | None = None

    def __str__(self) -> str:
        whose = "the target's own rows" if self.rows is None else "the rows as computed"
        follow = self.decisions - self.rounding - self.open
        text = f"{follow:,} of {self.decisions:,} decisions follow from {whose}"
        text += f", {self.rounding:,} more within rounding" if self.rounding else ""
        text += f", {self.open:,} were made in the drafter's own way" if self.open else ""
        of = f" of {', '.join(self.drafts)}" if self.drafts else ""
        how = self.dtype + ("" if self.drafts is None else f"; the draft's rows{of} as recorded")
        if self.rows is not None:
            return f"{text}; {self.rows} ({how})"
        if self.unread:
            return f"{text} ({how}; no independent forward has read them)"
        return f"{text} (independent forward, {how})"


class Lossless(Message):
    """Arms, of all, whose every decision is confirmed."""

    arms: int
    of: int
    decisions: DecisionsConfirmed

    def __str__(self) -> str:
        some = "" if self.arms == self.of else f", {self.arms} of {self.of} arms"
        return f"Lossless{some}: {self.decisions}."


class DecisionsChecked(Message):
    """``sequences``: how many, where not all of every arm."""

    sequences: int | None
    decisions: DecisionsConfirmed

    def __str__(self) -> str:
        where = "" if self.sequences is None else f" in {counted(self.sequences, 'sequence')}"
        return f"Decisions{where}: {self.decisions}."


class DecisionsFail(Message):
    reasons: tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"Decisions: {'; '.join(self.reasons)} ({self.dtype})."


class DecisionsRefuted(Message):
    """``own``: by the loops' rows, where outputs could not be read again."""

    contradicted: int
    decisions: int
    own: bool
    dtype: str

    def __str__(self) -> str:
        reader = "the loops' own rows" if self.own else "independent forward"
        return (
            f"Decisions: {self.contradicted:,} of {self.decisions:,} contradict the target's own rows "
            f"({reader}, {self.dtype})."
        )


class LeakageBounded(Message):
    """What evidence of one kind says of leakage.

    Attributes:
        rescored: whether an independent forward gave it; else the rows that SpS itself used.
        arm: the one it is of, where not all have it.
        widest: the arm with the widest bound, of several.
        alarmed: whether it alarms.
        few: the informative positions, where they are too few for a verdict.
    """

    rescored: bool
    leakage: Leakage
    sequences: int
    arm: str | None
    widest: str | None
    alarmed: bool
    few: int | None

    def __str__(self) -> str:
        whose = "" if self.arm is None else f" of {self.arm}"
        where = "" if self.widest is None else f" Widest bound: {self.widest}."
        if self.rescored:
            sequences = counted(self.sequences, "sequence")
            by = "re-scored by an independent forward"
            return f"Losslessness{whose}: {self._sign}; {sequences} {by}.{where}"
        return f"Self-consistency{whose}: {self._sign}, by the rows that SpS itself used alone.{where}"

    @property
    def _sign(self) -> str:
        if self.alarmed:
            return f"leakage {leak(self.leakage)}, {LEAKAGE}"
        few = "" if self.few is None else f"too few informative positions ({self.few}); "
        most = self.leakage["bound"]
        seen = f"one above {bound(most)} of the tokens would have been seen (95% bound)"
        return f"{few}no leak found, {seen if bounds(most) else 'but none can be excluded'}"


class GreedyIdentity(Message):
    identical: int
    total: int

    def __str__(self) -> str:
        alike = f"all {self.total}" if self.identical == self.total else f"{self.identical} of {self.total}"
        return f"Greedy: {alike} SpS outputs are identical to those of ArS, token for token."


class LeakageAtTemperature1(Message):
    """The bound of the arm with the largest, from sequences drawn for it; ``per_arm``: of several arms."""

    sequences: int
    per_arm: bool
    bound: float

    def __str__(self) -> str:
        more = f"{counted(self.sequences, 'more sequence')}{' per arm' if self.per_arm else ''}"
        if not bounds(self.bound):
            return f"At temperature 1 without nucleus, from {more}: {UNBOUNDED}."
        most = bound(self.bound)
        return f"At temperature 1 without nucleus, from {more}: leakage at most {most} (95% bound)."


EVIDENCE_LEGEND = (
    "Leakage: if a share of the tokens followed the draft and the rest the target, the share that fits the "
    "output best. "
    "Self-consistency uses the rows that SpS itself used: every sequence, but blind to a wrong row, a "
    "stale cache or a wrong position. Losslessness is claimed only from an uncached forward over the "
    "finished text. The e-value may be looked at while a run grows; alarm at 10^3. z, p and intervals hold "
    "for a number of prompts fixed beforehand."
)
DECISIONS_LEGEND = (
    "Every draft pick, acceptance test and draw was derived again, in float64, from the seed and an uncached "
    "forward over the finished text. Only by rounding: decided otherwise, with a uniform number so close to "
    "the edge that the rounding of the dtype explains it. Closest: the least distance from the edge of a "
    "decision that follows, as a probability. Draft's rows: from a forward of its own, or as the drafter "
    "recorded them, the rows that it drew from. Exact: every sequence, and nothing contradicted."
)
ROWS_LEGEND = (
    "Every draft pick, acceptance test and draw was derived again, in float64, from the seed and the rows "
    "that the loop had. Only by rounding: decided otherwise, with a uniform number so close to the edge that "
    "the rounding of float32 explains it. Closest: the least distance from the edge of a decision that "
    "follows, as a probability. Apart: mean total variation of these rows from an uncached forward over the "
    "finished text; of greedy rows the probability by which the best token exceeds theirs. Rounding: how far "
    "that forward is from itself when it reads a part of the text again in blocks of 1 or K+1. In float32 a "
    "single row beyond rounding is an alarm, in 16 bits a mean of 4 times it; what lies far off is first "
    "read a second time, in the blocks that its loops read, behind another cache. Exact: every sequence, "
    "nothing contradicted, and the rows are the model's."
)

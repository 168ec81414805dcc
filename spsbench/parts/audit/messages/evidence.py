"""What is found beside the law of an engine's texts: in what it reports, and where requests are repeated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from spsbench.base import Message

# --- logprobs ---

LOGITS = "the target's logits"
PROCESSED = "the target's law with all cuts"
RAW = "the target's logits before penalties, bias, bans and grammar"
TEMPERED = "the target's logits over the temperature"
DRAFT = "the draft's logits"
DRAFTED = "the draft's law with all cuts"
UNCUT = "the draft's law without the request's cuts"

NO_LOGPROBS = "None were returned."


def _misfits(texts: int) -> str:
    return f"in {texts} texts they are not one number below 0 a token"


class LogprobsUnusable(Message):
    texts: int

    def __str__(self) -> str:
        return f"Logprobs: {_misfits(self.texts)}."


class LogprobsFit(Message):
    law: str
    tokens: int
    right: int
    sentence = "{right} of {tokens} logprobs are those of {law}."


class LogprobsDiffer(LogprobsFit):
    """``elsewhere``: texts by what their logprobs belong to in place of their tokens."""

    of_draft: int
    of_other_rows: int
    apart: float
    elsewhere: Sequence[tuple[str, int]]
    misfits: int

    def __str__(self) -> str:
        parts = [f"{self.right} of {self.tokens} logprobs are those of {self.law}"]
        if self.of_draft:
            parts.append(f"{self.of_draft} of the others are the draft's")
        if self.of_other_rows:
            parts.append(f"{self.of_other_rows} are of another row, off by over {self.apart}")
        parts += [f"those of {count} texts fit {name}" for name, count in self.elsewhere]
        if self.misfits:
            parts.append(_misfits(self.misfits))
        return f"{'; '.join(parts)}."


# --- counters ---

SUMS_DIFFER = "the accepted tokens per loop do not add up to what is accepted, or to the loops"
MORE_THAN_DRAFTED = "more tokens were accepted than drafted"
BEYOND_K = "more than K tokens were drafted per loop"
ALL_ACCEPTED = "as many tokens were accepted as drafted, and more were emitted than such loops give"
TOO_MANY_COUNTED = "more tokens are counted than the last loop can have"
TOO_FEW_COUNTED = "fewer tokens are counted than there are"

NO_COUNTERS = "Drafted, accepted and loops are not reported."


class CountersFit(Message):
    texts: int
    past_the_end: int
    uncounted: int

    def __str__(self) -> str:
        parts = [f"the counters of {self.texts} texts fit their tokens"]
        if self.past_the_end:
            parts.append(f"{self.past_the_end} tokens of last loops come after the end")
        if self.uncounted:
            parts.append(f"{self.uncounted} texts have tokens of no counted loop")
        return f"Counters: {'; '.join(parts)}."


class CountersDiffer(Message):
    """``wrong``: in how many texts which of the sentences above is true; ``lag``: the request they fit."""

    texts: int
    wrong: Sequence[tuple[str, int]]
    lag: int | None

    def __str__(self) -> str:
        parts = [f"in {count} of {self.texts} texts {name}" for name, count in self.wrong]
        if self.lag is not None:
            parts.append(f"they fit the request {abs(self.lag)} {'after' if self.lag > 0 else 'before'}")
        return f"Counters: {'; '.join(parts)}."


# --- acceptance ---

MODIFIED = "modified rejection"
MODIFIED_RAW = "modified rejection, drafts without temperature and cuts"
MODIFIED_UNCUT = "modified rejection, drafts without the request's cuts"
BLOCK = "block verification"
COMPARED = "sample and compare"
COMPARED_TO_BEST = "sample and compare with the most probable token"

LOOPS_UNKNOWN = "Loops of K drafted tokens are not known."


class DraftsNotReported(Message):
    texts: int
    shorter: int
    k_adapts: bool

    def __str__(self) -> str:
        fewer = f"In {self.shorter} of {self.texts} texts loops draft less than K"
        why = "K adapts" if self.k_adapts else fewer
        return f"{why}, and which tokens each drafted is not reported."


class NoSureRow(Message):
    p_min: float
    sentence = "Nothing was drafted: no row reached {p_min:g}."


class NothingDrafted(Message):
    texts: int
    sentence = "A draft is loaded, and in {texts} texts nothing was drafted."


class LoopLengths(Message):
    """Tokens per loop, and the least and the most by the rows: it depends on the rule."""

    loops: int
    mean: float
    least: float
    most: float

    @property
    def rows(self) -> str:
        return f"the rows of target and draft give {self.least:.2f} to {self.most:.2f}, by the rule."

    sentence = "{mean:.2f} tokens per loop in {loops} loops; {rows}"


class NoneAccepted(LoopLengths):
    sentence = "No drafted token was accepted in {loops} loops; {rows}"


class AllAccepted(LoopLengths):
    sentence = "Every drafted token counts as accepted in all of {loops} loops; {rows}"


class OtherDrafts(Message):
    """``processors``: of logits, which drafts need not know."""

    lengths: LoopLengths
    processors: Sequence[str]

    def __str__(self) -> str:
        names = ", ".join(self.processors).replace("_", " ")
        return f"The drafts do not know its {names}, or are others: {self.lengths}"


class LengthsUnlikeText(Message):
    """``kept``: the numbers of drafted tokens that loops accepted."""

    lengths: LoopLengths
    kept: Sequence[int]

    def __str__(self) -> str:
        some = f" (only {' and '.join(map(str, self.kept))} occur)" if 0 < len(self.kept) <= 2 else ""
        return f"Accepted lengths do not follow the text{some}, or another drafter is used: {self.lengths}"


class TestedDrafts(Message):
    accepted: int
    tests: int
    least: float
    most: float
    follows_text: bool

    def __str__(self) -> str:
        rows = f"the rows of target and draft give {self.least:.1%} to {self.most:.1%}, by the rule."
        kept = f"{self.accepted} of {self.tests} tested drafts were accepted, in loops of any length; {rows}"
        unlike = "Acceptance does not follow the text, or another drafter is used: "
        return kept if self.follows_text else f"{unlike}{kept}"


# --- requests that know of each other ---

UNSEEDED = "without a seed"
SEEDED = "with different seeds"

TOO_FEW_SAMPLED = "No two requests were sampled."
NO_SEED_TWICE = "No request was sent twice with one seed."


class Independent(Message):
    requests: Mapping[str, int]

    def __str__(self) -> str:
        requests = " and ".join(f"{count} requests {kind}" for kind, count in self.requests.items())
        return f"{requests} are independent of earlier ones."


class Dependent(Message):
    kinds: Sequence[str]

    def __str__(self) -> str:
        return f"Requests {' and '.join(self.kinds)} reuse texts or random numbers of earlier ones."


class SeedsRepeated(Message):
    equal: int
    repeated: int
    sentence = "{equal} of {repeated} texts were the same when their seed was repeated."


# --- ends of texts ---

LAST_UNTESTED = "The last token of full-length texts comes from the draft: it was not tested"
DRAWN_AGAIN = "Texts end more often than the target's rows say: unfinished texts were resampled"
_RIGHT_ENDS = "Texts end as the target's rows say"

NOTHING_SAMPLED = "Nothing was sampled."


class TextEnds(Message):
    """``fault``: one of the sentences above."""

    texts: int
    full: int
    fault: str = _RIGHT_ENDS
    sentence = "{fault}; {full} of {texts} reach their limit."


# --- greedy requests that are repeated behind another one ---

NOTHING_REPEATED = "No greedy request was repeated behind another one."
FIRST_WRONG = "The first greedy requests do not get the target's most probable tokens."
FIRST_TOO_CERTAIN = "The first greedy requests may have been sampled: their texts are too certain."


class GreedyRepeats(Message):
    later: int
    wrong: int

    def __str__(self) -> str:
        if not self.wrong:
            return f"{self.later} greedy requests that begin as an earlier one are right."
        return (
            f"{self.wrong} of {self.later} greedy requests that begin as an earlier one are wrong, "
            "and no first one is: cached state of another request answers them."
        )


# --- withdrawn drafts, at chosen contexts ---


class TooFewToJudge(Message):
    texts: int

    def __str__(self) -> str:
        why = f"{self.texts} texts are too few for what withdrawn drafts would change here"
        return f"No threshold is judged: {why}."


def _thresholds(values: Collection[float]) -> str:
    return f"threshold{'s' * (len(values) > 1)} {', '.join(f'{at:g}' for at in values)}"


class WithdrawnDrafts(Message):
    """``ruled_out``, ``remaining``: the largest log e-value by threshold; of drafts below ``fewest``."""

    fewest: int
    ruled_out: Mapping[float, float]
    remaining: Mapping[float, float]

    def __str__(self) -> str:
        parts = []
        if self.ruled_out:
            exponent = -max(self.ruled_out.values()) / math.log(10)
            factor = f"by a factor of 10^{exponent:.1f} or more"
            parts.append(f"ruled out at {_thresholds(self.ruled_out)}, {factor}")
        if self.remaining:
            times = math.exp(-min(max(self.remaining.values()), 300.0))
            probability = f"the target's law is {times:.2g} times as probable, 20 are needed"
            parts.append(f"not ruled out at {_thresholds(self.remaining)}: {probability}")
        claim = f"That drafts of fewer than {self.fewest} tokens are withdrawn"
        return f"{claim} is {'; it is '.join(parts)}."


class Doubted(Message):
    """A finding by the target's law, of texts that have another."""

    finding: Message | str
    sentence = "{finding} This is by the target's law, which these texts do not follow."


# --- quantised weights beside plain texts ---


class FarFromWeights(Message):
    nats: float
    rounding: float

    def __str__(self) -> str:
        away = f"{self.nats:.3f} nats a token from the dequantised weights"
        return f"{away}, and rounding explains {self.rounding:.3f}"


class PairsDiffer(Message):
    log10_e_value: float
    sentence = "pairs of texts with and without a draft: e-value 10^{log10_e_value:.1f}"


class GreedyDifference(Message):
    """How far below the best logit a token is that the plain text has not, and how far those of plain ones
    are."""

    request: int
    place: int
    apart: float
    stray: float | None

    def __str__(self) -> str:
        where = f"request {self.request} leaves the plain text at token {self.place}"
        return f"{where}, {self.apart:.3g} below the best logit; plain texts stray by {self.stray:.3g}"

"""How a run was measured and ended, what its tables hold, and what two runs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from spsbench.base.axes import both_arms
from spsbench.base.errors import printable
from spsbench.base.messages import Message
from spsbench.report import wording
from spsbench.report.wording import milliseconds
from spsbench.stats.anytime import FEWEST
from spsbench.stats.messages import percent, significant
from spsbench.store.summary_types import Energy, PaysUpTo, Stopping

NOTHING_MEASURED = "Nothing was measured."

# --- how it was measured, and why it ended ---


class TimingsRepeated(Message):
    replaced: int
    timings: int
    sentence = "{replaced} of {timings} timings were repeated because of contention."


class PromptsTimedAgain(Message):
    """How often each prompt was timed, and the seconds that it took."""

    times: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"Each prompt was timed {significant(self.times)} times, which took {self.seconds:.0f} s more, "
            "to average over clock drift."
        )


class SeveralConditions(Message):
    count: int
    sentence = "Measured under {count} different conditions; times are shown under each and not pooled."


class RunStopped(Message):
    """Why a run ended, and how well speedups are known.

    Attributes:
        widths: half-widths of the speedups, smallest first; empty without an interval.
        more: how to get more prompts.
    """

    end: Stopping
    widths: tuple[float, ...]
    more: str

    def __str__(self) -> str:
        shown = [f"±{percent(width)}" for width in self.widths]
        known = f"the speedup is known to {shown[0]}" if shown else ""
        if len(shown) > 1:
            known = f"the narrowest speedup is known to {shown[0]}, the widest to {shown[-1]}"
        end = self.end
        so_many = f"{end['prompts']} of {end['pool']} prompts"
        wish = "" if end["precision"] is None else f", asked was ±{percent(end['precision'])}"
        narrow = f": {known}{wish}." if known else f"{wish}."
        if end["reason"] == "precision":
            return f"Stopped after {so_many}{narrow}"
        if end["reason"] == "budget":
            return f"Budget of {end['budget_s']:g} s reached after {so_many}{narrow}"
        return f"All {end['prompts']} prompts were run: {known or 'there is no interval'}{wish}. {self.more}."


ANYTIME = (
    "The speedup's intervals are those of a 95% confidence sequence, for each arm by itself: they stay valid "
    "when a run stops because they are narrow."
)
TOO_FEW_FOR_ANYTIME = (
    f"Below {FEWEST} prompts there is no interval that stays valid when a run stops by its width."
)

POOLED_TIME = (
    "Speedup is the ratio of pooled decoding time per token, prefill apart; end to end counts prefill too."
)
EQUAL_METRICS = "Equal metrics are no proof of equal distributions; `spsbench verify` tests the sampler."


class IntervalOfSpeedup(Message):
    """How it is made: one of a confidence sequence, over processes, or a jackknife over prompts.

    Attributes:
        over_time: whose fifths by time are in a jackknife's, "the run's" or "the shards'"; None where time is
            not in it.
        contention: what is held too, see ``contention_named``.
    """

    anytime: bool
    processes: bool
    over_time: str | None
    contention: str | None

    def __str__(self) -> str:
        one_draw = "It does not hold how the machine's speed changes with time."
        if self.anytime:
            how = f"that of a confidence sequence over prompts, paired. {one_draw}"
        elif self.processes:
            how = "a jackknife over processes and over prompts (Student's t)."
        elif self.over_time is None:
            how = f"a jackknife over prompts, paired (Student's t). {one_draw}"
        else:
            others = "" if self.contention is None else f" and {self.contention}"
            how = (
                f"a jackknife over prompts, paired (Student's t), with the spread of {self.over_time} fifths "
                f"by time{others}; what changes over hours is not in it."
            )
        return f"The speedup's 95% interval is {how}"


class ContentionReason(Message):
    """What took time of each second measured, under the name that it has with what else did."""

    contention: str
    reason: str
    sentence = "{contention}: {reason}."


# --- tables ---

OPTIMUM_NOTE = (
    "Share of optimum: accepted tokens over those that the best lossless rule (block verification, Sun et "
    "al. 2024) would accept of the same drafts on average. Chance and lossy rules can bring it above 100%."
)
BOTH_MEANS = "Pooled over loops / mean over prompts."
NO_ARM_SPECULATES = "No arm speculates: ArS (K = 0) is timed alone, against nothing."
TURNS_NOTE = (
    "A later turn's prompt holds the arm's own earlier answers: where two arms answered alike it is the "
    "same, else each has its own. Turns are paired by conversation, and intervals are over conversations."
)
ENGINES_NOTE = (
    "Speedup over the ArS of the arm's own engine, which says whether speculation pays there, and over the "
    "fastest ArS of the run, which says whether it is worth using."
)
SURFACES_NOTE = (
    "Speedup of SpS over ArS of the same batch size B. Tokens/s: of the whole batch while every row is "
    "taken. ms/token: what a sequence waits for each token. Both of SpS: at its fastest K."
)
LATEX_SPEEDUP_NOTE = (
    r"Speedup: time per token of ArS over that of the arm, decoding alone, in brackets its 95\% interval; "
    "end to end: with prefill."
)
LATEX_ACCEPTANCE_NOTE = (
    r"$\tau$: mean acceptance length, accepted tokens + 1 per loop. Acceptance rate: accepted over drafted "
    r"tokens. $\alpha$: mean of $\sum_x \min(p(x), q(x))$ over tested positions. "
    r"$r'$: (accepted + 1) / (K + 1)."
)
LATEX_SYNTHETIC = "SYNTHETIC data, or a pair trained on it: these numbers say nothing about real text."


class ForwardHoldsDraws(Message):
    """Of some arms, whose names are written as they shall stand; without any of all arms."""

    arms: tuple[str, ...] = ()

    def __str__(self) -> str:
        includes = "includes the warping, and of ArS the draw: a CUDA graph does them with the forward."
        if not self.arms:
            return f"`verify` {includes}"
        return (
            f"`verify` of {', '.join(self.arms)} {includes} Of the other arms compare `verify` and `sample` "
            "together with these two of a graph."
        )


class ColumnTooWide(Message):
    column: str
    sentence = "Too narrow for the column {column}: it is in report.md."


class OutputLength(Message):
    tokens: int
    sentence = "each output {tokens} tokens, EOS ignored"


class TokensHashed(Message):
    digest: str
    sentence = "Hash of all token ids: {digest}"


_ROLLED_BACK = {
    "replay": "by reading the accepted tokens again (replay)",
    "planes": "by taking the one after the last accepted token, kept in the block (planes)",
    "steps": "token by token: its forward cannot read a block after a past (steps)",
}


class StatesRolledBack(Message):
    """How running states of each role are; by arm the milliseconds of a loop that takes, and the loop's."""

    ways: tuple[tuple[str, str], ...]
    times: tuple[tuple[str, float, float], ...]

    def __str__(self) -> str:
        roles_of: dict[str, list[str]] = {}
        for role, way in self.ways:
            roles_of.setdefault(_ROLLED_BACK.get(way, way), []).append(f"the {role}'s")
        how = "; ".join(f"{' and '.join(roles)} {way}" for way, roles in roles_of.items())
        times = [f"{arm} {milliseconds(spent)} of {milliseconds(loop)} ms" for arm, spent, loop in self.times]
        spent = f" It takes of a loop: {', '.join(times)}." if times else ""
        return f"Running states are rolled back, {how}.{spent}"


class EnergyCounted(Message):
    energy: Energy

    def __str__(self) -> str:
        step, length = self.energy["update_s"], self.energy["mean_sequence_s"]
        text = (
            f"Energy by {self.energy['source']}, around each sequence with its prefill: its counterpart "
            "among the times is the end-to-end speedup. It includes idle power and what other "
            "processes use."
        )
        if step is None or length is None:
            return text
        return (
            f"{text} The counter moves every {significant(1e3 * step)} ms, and a sequence took "
            f"{significant(1e3 * length, 3)} ms."
        )


class EnergyUncounted(Message):
    arms: tuple[str, ...]

    def __str__(self) -> str:
        listed = ", ".join(self.arms)
        return f"Not counted: {listed}; an external engine may compute on another device or machine."


class BatchesAlike(Message):
    """Outputs of batches that are not those of batch size 1, of so many."""

    differing: int
    outputs: int

    def __str__(self) -> str:
        if not self.differing:
            return f"Outputs of batches are identical to those of batch size 1 on all {self.outputs:,}."
        return (
            f"{self.differing:,} of {self.outputs:,} outputs of batches differ from those of batch size 1. "
            "Forwards of more rows may round otherwise; what the evidence says of each arm stands under "
            "losslessness."
        )


class PaysUpToBatch(Message):
    line: PaysUpTo
    largest: int

    def __str__(self) -> str:
        k, batch, low, high = (self.line[name] for name in ("k", "batch", "low", "high"))
        if self.line["beyond"]:
            least = "" if low is None else f" (at least B = {low:.3g}, 95%)"
            return f"K={k} pays up to the largest batch, {self.largest}{least}."
        if batch is None:
            return f"Of K={k} it is not known."
        if batch == 0:
            return f"K={k} pays at no batch size."
        most = f"beyond {self.largest}" if high is None else f"{high:.3g}"
        ends = "" if low is None else f" [{low:.3g}, {most}]"
        return f"K={k} pays up to B = {batch:.3g}{ends}."


# --- data ---

_EXTRACTIONS = {
    "fence": "code taken from the first Python fence that defines the function, else from the first fence.",
    "none": "every answer run as it is, after its prompt.",
    "begun": "the answer is begun with a fence and the function's head, and run up to the closing fence.",
}


class CodeExtracted(Message):
    """What of an answer is run as code, by the name of the way in ``WAYS``."""

    metric: str
    way: str

    WAYS: ClassVar = _EXTRACTIONS.keys()

    def __str__(self) -> str:
        return f"{wording.metric_title(self.metric)}: {_EXTRACTIONS[self.way]}"


Counts = Mapping[str, int]


def _counted(counts: Counts) -> str:
    return ", ".join(f"{printable(name)} ({count})" for name, count in counts.items())


LEFT_OUT = {
    "later_turns": "later turns, as the file has no answer before them",
    "unasked_turns": "later turns, as first turns alone were asked",
    "unfitting_turns": "later turns that might not fit the window behind the longest answers",
    "unasked": "conversations that no user begins",
    "skipped_empty": "rows without text",
    "skipped_untestable": "problems whose tests need more than the function",
}
"""What is of data, by its name in their provenance."""


class DataLeftOut(Message):
    counts: Counts

    def __str__(self) -> str:
        listed = "; ".join(f"{printable(what)}: {count}" for what, count in self.counts.items())
        return f"Left out, {listed}."


class FieldsUnused(Message):
    counts: Counts

    def __str__(self) -> str:
        return f"Not used of the file: {_counted(self.counts)}."


class ReferencesUnread(Message):
    unread: int
    references: int | None
    sentence = (
        "ROUGE cannot read {unread} of {references} references, which have no score: it keeps "
        "the letters a to z and digits alone."
    )


class PartsUnwritten(Message):
    """By a chat template."""

    counts: Counts

    def __str__(self) -> str:
        return f"The chat template does not write, by prompts that have them: {_counted(self.counts)}."


class ThoughtsOpened(Message):
    """By a chat template; ``switch``: the variable of it that leaves them out."""

    prompts: int
    switch: str | None

    def __str__(self) -> str:
        off = "no variable of it leaves it out"
        if self.switch:
            off = f"--template-arg {printable(self.switch)}=false leaves it out"
        return (
            f"The chat template opens a thought before the answer in {self.prompts} prompts: {off}. Thoughts "
            "are timed, and not graded."
        )


class DeveloperMessages(Message):
    count: int
    as_system: bool

    def __str__(self) -> str:
        how = (
            "put as system, as the template has no such role"
            if self.as_system
            else "as the chat template has them"
        )
        return f"Messages of the role developer: {self.count}, {how}."


# --- two runs, and several ---

SPEEDUP_RATIO = "speedup of B over that of A"
NOT_INTERLEAVED = (
    "Paired by prompt; the runs were not interleaved, so a drift of the machine between them is in the "
    "ratio and not in its interval."
)
SIDE_BY_SIDE_NOTE = (
    "Each speedup is against the run's own ArS. Times of different runs compare only where nothing below "
    "differs; `spsbench compare` pairs their prompts."
)


class RunsCompared(Message):
    prompts: int
    sentence = "B against A on {prompts} common prompts"


class PromptsUnfinished(Message):
    """How many prompts an arm of a comparison finished in either run, and what the others ended with."""

    arm: Mapping[str, Any]

    def __str__(self) -> str:
        arm = self.arm
        why = f" ({printable(arm['reason'])})" if arm["reason"] else ""
        counts = f"{arm['b_finished']} prompts in B and {arm['a_finished']} in A"
        return f"{both_arms(arm)} has times of {counts}{why}"


class TokensIdentical(Message):
    arm: str
    outputs: int
    sentence = "{arm}: identical tokens in all {outputs} outputs"


class TokensPart(Message):
    """Identical outputs of all, and where others part first: ``gap`` of two logits, if texts were read."""

    arm: str
    identical: int
    outputs: int
    place: Mapping[str, Any]

    def __str__(self) -> str:
        example = printable(self.place["example_id"])
        return (
            f"{self.arm}: {self.identical} of {self.outputs} outputs identical; the earliest difference is "
            f"token {self.place['position']} of {example}{self._gap}"
        )

    @property
    def _gap(self) -> str:
        place = self.place
        if "gap" not in place:
            return ""
        sides = []
        for side in ("a", "b"):
            token, text = place[f"{side}_token"], place.get(f"{side}_text")
            shown = f" {printable(text)!r}" if text else ""
            sides.append("the end" if token is None else f"{token}{shown}")
        head = f": {sides[0]} in A, {sides[1]} in B; "
        if place["gap"] is None:
            return f"{head}the gap of the two largest logits there is unknown ({place['gap_unknown']})"
        return f"{head}the two largest logits there are {place['gap']:.2g} apart ({place['dtype']})"


FATES = {
    "accepted": "drafted, and accepted by the target",
    "rejected": "drafted, and rejected: not output",
    "correction": "drawn from the residual in its place",
    "bonus": "drawn from the target after a draft accepted whole",
}
"""What becomes of a token of a loop."""

"""Whether speculation pays and with which arm, why it is this fast, and what theory and memory allow."""

from __future__ import annotations

from spsbench.base.messages import Message
from spsbench.report import wording
from spsbench.report.messages.losslessness import share
from spsbench.report.wording import counted, milliseconds, percent, speedup
from spsbench.stats.latency import FEWEST_FOR_P99
from spsbench.stats.predict import FEWEST_PROMPTS
from spsbench.store.summary_types import BreakEven, Hindsight, LoopLine, Outcome, RatioInterval

# --- verdicts ---


class Gain(Message):
    """Speedups, as a clause."""

    per_token: RatioInterval
    end_to_end: RatioInterval | None

    def __str__(self) -> str:
        text = f"{speedup(self.per_token)} per token"
        return text if self.end_to_end is None else f"{text}, {speedup(self.end_to_end)} end to end"


class Pays(Message):
    """``scope``: sampling and batch size where there are several; ``chosen``: among arms."""

    name: str
    scope: str
    gain: Gain
    chosen: bool

    def __str__(self) -> str:
        if self.chosen:
            return f"Use {self.name}{_after_comma(self.scope)}: {self.gain}."
        return f"{self.name}{_after_comma(self.scope)} pays: {self.gain}."


class DoesNotPay(Message):
    """``even``: where the arm would pay; None where that is unknown."""

    name: str
    scope: str
    gain: Gain
    even: BreakEven | None

    def __str__(self) -> str:
        ran = f"Does not pay here{_after_comma(self.scope)}: {self.name} ran {self.gain}."
        if self.even is None:
            return ran
        ways, even = [], self.even
        if even["c"] is not None and even["measured_c"] is not None:
            ways.append(f"c below {even['c']:.2f} (measured {even['measured_c']:.2f})")
        if even["alpha"] is not None:
            ways.append(f"alpha above {even['alpha']:.2f} (measured {even['measured_alpha']:.2f})")
        if not ways:
            return f"{ran} Neither a better nor a cheaper draft is enough."
        return f"{ran} It would pay with {' or '.join(ways)}."


class NoClearGain(Message):
    name: str
    scope: str
    gain: Gain
    remedy: Message

    def __str__(self) -> str:
        return f"No clear gain{_after_comma(self.scope)}: {self.name} ran {self.gain}. {self.remedy}"


class HiddenByContention(Message):
    """An answer that CPU contention leaves open.

    Attributes:
        leaning: what it would be without; None where it was open anyway.
        ratio: of time per token.
        contention: what took the time, see ``contention_named``.
        remedy: more prompts, where these are too few.
    """

    leaning: Outcome | None
    name: str
    scope: str
    ratio: float
    contention: str
    lost_share: float
    remedy: Message | None = None

    def __str__(self) -> str:
        likely = {"pays": "Probably pays", "does not pay": "Probably does not pay"}
        head = likely.get(self.leaning or "", "No clear gain")
        ran = f"{self.name} ran about {wording.times(self.ratio)} per token"
        taken = f"{self.contention} took {share(self.lost_share)} of the time"
        more = "" if self.remedy is None else f" {self.remedy}"
        return f"{head}{_after_comma(self.scope)}: {ran}; {taken}.{more}"


def _after_comma(scope: str) -> str:
    return f", {scope}" if scope else ""


class TooFewToChoose(Message):
    """Prompts to choose an arm on some and to measure it on others; ``more``: how to get more."""

    candidates: int
    prompts: int
    more: str

    def __str__(self) -> str:
        return (
            f"Choosing among {self.candidates} arms takes {FEWEST_PROMPTS} prompts; these are "
            f"{self.prompts}. {self.more}."
        )


class NoIntervalOver(Message):
    prompts: int
    more: str

    def __str__(self) -> str:
        return f"There is no interval over {counted(self.prompts, 'prompt')}. {self.more}."


class IntervalTooWide(Message):
    more: str
    sentence = "{more} for a narrower interval."


class LargestKMeasured(Message):
    k: int
    sentence = "K={k} is the largest that was measured; a larger K may be faster."


class ChosenOnHalf(Message):
    """The speedup of the arm chosen on one half of the prompts; None where that was ArS."""

    speedup: RatioInterval | None

    def __str__(self) -> str:
        if self.speedup is None:
            return "Chosen on one half of the prompts, ArS was the fastest."
        measured = speedup(self.speedup)
        return f"Chosen on one half of the prompts and measured on the other, both ways: {measured}."


class LargestLoss(Message):
    factor: str
    sentence = "Largest loss: {factor}."


SLOWEST_GAIN_NOTHING = "The slowest sequences gain nothing."


class OthersSlower(Message):
    noun: str
    sentence = "Every other {noun} is slower."


class ArmsAlike(Message):
    """Arms that are as good as the fastest one, of so many others; by name where they are few."""

    names: tuple[str, ...]
    others: int

    def __str__(self) -> str:
        if len(self.names) > wording.MANY:
            return f"{len(self.names)} of {self.others} other arms cannot be told apart from it."
        return f"Cannot be told apart from it: {', '.join(self.names)}."


class KsAlike(Message):
    """Several K in order; ``gapless``: every measured K between the ends is among them."""

    ks: tuple[int, ...]
    gapless: bool

    def __str__(self) -> str:
        shown = f"{', '.join(map(str, self.ks[:-1]))} and {self.ks[-1]}"
        if self.gapless and len(self.ks) > 2:
            shown = f"{self.ks[0]} to {self.ks[-1]}"
        return f"K={shown} cannot be told apart."


VERDICT_NOTE = (
    "Ratios of time per token, paired by prompt: how much faster the fastest arm is. Where the interval "
    "contains 1 the two cannot be told apart."
)

# --- reasons ---

FACTORS_NOTE = (
    "Each factor multiplies what stands above it, from K+1 (all accepted, one target step a loop and nothing "
    "else) down to the measured speedup, exactly. Acceptance is alpha_beta of this arm: it describes, and "
    "predicts nothing."
)
JUDGING_NOTE = (
    "Verifying and judging: where a CUDA graph does a forward and what follows it at once, a target step is "
    "the forward and the draw of an ArS step together."
)


class BelowBestRule(Message):
    """Accepted tokens over those of the best rule, with the interval."""

    share: str
    sentence = (
        "{share} of the tokens that the best lossless rule (block verification) would accept of "
        "these drafts on average: `--rule block`."
    )


THEORY_NOTE = (
    "Leviathan et al. 2022: (1 - alpha^(K+1)) / (1 - alpha) / (K c + 1), with alpha by teacher forcing on "
    "ArS text (`alpha_leviathan`). Chen et al. 2023: r'(K+1) t_target / (K t_draft + t_target), with the "
    "measured r'. Residual: measured - predicted; its largest cause is the largest factor of measured over "
    "predicted (Leviathan) in the residual's direction. Both take verifying K+1 tokens as one target step. "
    "Operations: arithmetic per token as a multiple of ArS, by parameters. By replay: tokens per loop as the "
    "ArS texts alone tell them for this K, with the 95% interval over prompts, beside the measured ones."
)


class TheoreticalK(Message):
    """The theory's best K, and the gain that alpha and c alone grant."""

    k: int
    speedup: float | None
    least: float | None
    sentence = "the theory's best K is {k}, {speedup:.2f}x; at least {least:.2f}x from alpha and c alone."


class LoopTakes(Message):
    line: LoopLine

    def __str__(self) -> str:
        text = f"a loop takes {wording.loop_line(self.line)}"
        if self.line["drafting_ms_per_token"] is not None:
            text += f", drafting alone {self.line['drafting_ms_per_token']:.3g} ms per token"
        return f"{text}."


class ForwardReads(Message):
    """Bytes of weights, of the target and of a draft."""

    target: float
    draft: float | None

    def __str__(self) -> str:
        draft = "" if self.draft is None else f", the draft {wording.mebibytes(self.draft)}"
        return f"A forward of the target reads {wording.mebibytes(self.target)} of weights{draft}."


class DispatchBound(Message):
    """``shared``: a hypervisor reports the cache."""

    cache_bytes: float | None
    shared: bool

    def __str__(self) -> str:
        so = ", so"
        if self.shared:
            so = (
                ". A hypervisor reports it, and other guests of the host may share it. If it is available in "
                "full,"
            )
        return (
            f"The weights fit in the reported last-level cache ({wording.mebibytes(self.cache_bytes)}){so} "
            "the regime is dispatch-bound: a speedup comes from fewer forwards to dispatch, not from less "
            "memory traffic, and no bandwidth ceiling applies."
        )


BANDWIDTH_UNKNOWN = "The memory bandwidth was not measured, so no floor is shown."


class BandwidthMeasured(Message):
    bytes_per_s: float

    def __str__(self) -> str:
        return f"Measured bandwidth: {self.bytes_per_s / 1e9:.3g} GB/s."


class BestKInEveryLoop(Message):
    """What the right K in every loop would have gained over the best fixed one."""

    found: Hindsight

    def __str__(self) -> str:
        found = self.found
        fixed = "ArS" if found["best_k"] == 0 else f"the best fixed K={found['best_k']}"
        return (
            "the right K in every loop, known only afterwards, would have taken "
            f"{milliseconds(found['oracle_ms_per_token'])} ms/token against "
            f"{milliseconds(found['fixed_ms_per_token'])} for {fixed}: at most {found['gain_bound']:.2f}x "
            f"faster, for K up to {found['max_k']} (reached in {percent(found['censored'])} of its loops)."
        )


HINDSIGHT_NOTE = "No sampler can know this beforehand: a bound on adapting K, not a promise."
TAILS_NOTE = (
    "Until N tokens: to the end of the loop that brings the N-th, over sequences that have so many. The "
    "paper's clock gives every loop the arm's mean loop time, so that its deviation comes from loop counts."
)
FEW_FOR_P99 = f"With fewer than {FEWEST_FOR_P99} sequences P99 is nearly the slowest."
POSITIONS_NOTE = "`mean_acceptance_length` of the loops that began at these output tokens (how many)."

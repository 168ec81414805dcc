"""Captions of figures, their longer titles and keys, and why one is not drawn."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base.messages import Message

SEVERAL_CONDITIONS = "the run was measured under several conditions, whose times are not pooled"
NO_LOOKAHEADS_REPLAYED = "fewer than two lookaheads are replayed: that takes ArS texts read with the draft"

# Axes, keys and titles.
SPEEDUP_AXIS = "speedup over ArS (x), decoding alone"
BY_LEVIATHAN = "predicted from alpha and c (Leviathan)"
BY_CHEN = "from r' and step times (Chen)"
TIME_PER_TOKEN = "Time per token (outputs differ in length)"
FIGURE1_TITLE = "Figure 1 of the paper, our measurements"
LOOP_TITLE = "Where a loop's time goes"
BY_POSITION = "Acceptance by draft position j"
POSITION_AXIS = "position j in the draft"
OUTPUT_AXIS = "position of the loop (output tokens before it)"
ACCEPTANCE_TITLE = "Acceptance by draft position and along the output"
REPLAYED = "by replay of ArS texts, 95%"
INDEPENDENT = "if tests were independent (Leviathan)"
REPLAY_TITLE = "Tokens per loop by replay"
TAILS_TITLE = "Slow sequences and slower prompts"
SLOWER_TITLE = "Prompts slower than under ArS"

_RATIO = "Ratio of time per token, ArS over SpS"


class SpeedupsByArm(Message):
    """``without_interval``: whether an arm has none."""

    without_interval: bool

    def __str__(self) -> str:
        text = (
            f"{_RATIO}, decoding alone; above 1 SpS is faster. Lines: 95% interval over prompts. Pale: the "
            "interval is not wholly above 1."
        )
        hatched = " Hatched: no interval, so nothing is said of how sure it is."
        return text + (hatched if self.without_interval else "")


class SpeedupsByK(Message):
    """Whether measured speedups have intervals, which formulae are drawn."""

    intervals: bool
    formulae: Sequence[str]

    def __str__(self) -> str:
        text = f"{_RATIO}, decoding alone; above 1 SpS is faster."
        text += " Bars: 95% interval over prompts." if self.intervals else ""
        if self.formulae:
            text += (
                " Predictions assume that verifying K + 1 tokens costs one target step and that all else is "
                "free."
            )
        if "leviathan" in self.formulae:
            text += " Leviathan's alpha comes from teacher forcing on ArS text, never from the result."
        return text


class SpeedupsByBatch(Message):
    intervals: bool

    def __str__(self) -> str:
        text = f"{_RATIO} of the same batch size; above 1 SpS is faster."
        return text + (" Bars: 95% interval over waves of prompts." if self.intervals else "")


class LoopSlope(Message):
    """Milliseconds per drafted token of a series; ``two_k``: by two K, through which a line always goes."""

    series: str
    slope: str
    two_k: bool
    draft_step: str | None

    def __str__(self) -> str:
        text = f"{self.series} {self.slope} ms per drafted token"
        text += ", through two K alone" if self.two_k else ""
        return text if self.draft_step is None else f"{text} (a draft step: {self.draft_step} ms)"


class Figure1(Message):
    """``length``: of every output, where it is fixed."""

    length: int | None
    slopes: Sequence[LoopSlope]

    def __str__(self) -> str:
        what = f"Time for {self.length} tokens" if self.length else TIME_PER_TOKEN
        text = (
            f"{what}: mean over sequences, by wall time (filled) and by the paper's clock (hollow: mean loop "
            "time times the sequence's loops, so that only loop counts vary). Bars: one standard deviation "
            "over sequences. r' is (accepted + 1) / (K + 1), 1 at K = 0."
        )
        if self.slopes:
            text += (
                f" Loop time with the line fitted over K from 1 on: {'; '.join(map(str, self.slopes))}. Thin "
                "line: one target step plus K draft steps, without any other cost."
            )
        return text


class LoopParts(Message):
    """``judged``: sampling is a part of its own; ``split``: the target is, over processes."""

    verify: str
    judged: bool
    split: bool

    def __str__(self) -> str:
        at_once = ", with the warping, tests and draws that follow: graphs do both at once"
        sampled = "sample, warping, tests and draws; "
        collectives = "; comm, collectives between the processes that share the target"
        return (
            f"Mean milliseconds of a loop: {self.verify}, the target's pass over K + 1 tokens (one at K = 0, "
            f"which is ArS){'' if self.judged else at_once}; draft, K passes of the draft and its draws; "
            f"{sampled if self.judged else ''}other, the host's own work{collectives if self.split else ''}."
        )


class AcceptanceByPosition(Message):
    """``fewest``: tests of a stretch of the output that is drawn."""

    k: int
    fewest: int
    sentence = (
        "By position, K = {k}: joint, the share of loops that accepted j tokens or more (filled), "
        "and conditional, the share accepted at position j of those tested there (hollow). Along the "
        "output: accepted / tested tokens by where the loop begins, all K together, of stretches with "
        "{fewest} tests or more; band: one standard error over prompts."
    )


LENGTHS = (
    "Tokens of a loop: accepted + 1, before truncation. Dashes: the shares if tests were independent "
    "with the same alpha_tested. Measured bars above the dashes at both ends mean that acceptance is "
    "correlated: easy tokens follow easy ones, and hard tokens hard ones."
)
REPLAY = (
    "Tokens kept per loop. Points: measured. Line: predicted for each K by replay of this run's ArS "
    "texts; band: 95% interval over prompts. Dashes: the same alpha at every position."
)


class TailPercentiles(Message):
    """``slower``: the share of slower prompts is drawn; ``few``: so few sequences, where P99 is of few."""

    length: int | None
    slower: bool
    few: int | None

    def __str__(self) -> str:
        unit = f"for {self.length} tokens" if self.length else "per token"
        text = f"Percentiles over sequences of the decoding time {unit}; K = 0 is ArS."
        if self.slower:
            text += " Slower prompts: the share whose own time per token is longer than under ArS."
        if self.few is not None:
            text += f" With {self.few} sequences P99 is close to the slowest one."
        return text

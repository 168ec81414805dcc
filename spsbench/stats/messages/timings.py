"""Of times: what others took of them, whether they can be, and which stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from spsbench.base.messages import Message, listed
from spsbench.stats.messages import MOST_NAMED, percent

TAKEN = {
    "waited_s": "all threads together waited {:.2f} s for a CPU that other processes used",
    "stolen_s": "other virtual machines on this host used the CPU for {:.2f} s",
    "throttled_s": "heat or the board's limits held the GPU's clocks down for {:.2f} s",
    "shared_s": "other processes computed on the GPU for {:.2f} s",
}
"""What takes time that is measured, by its name among a sample's conditions."""

_OF_A_GPU = ("throttled_s", "shared_s")


class ContentionMeasured(Message):
    """Seconds of each second measured, by one of ``TAKEN``."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"in each second measured {TAKEN[self.name].format(self.share)}"


def contention_named(reasons: Sequence[str]) -> str:
    """What a summary's ``ContentionMeasured`` are together; on a GPU not the CPU's contention alone."""
    titles = [TAKEN[name].partition("{")[0] for name in _OF_A_GPU]
    of_gpu = any(title in reason for title in titles for reason in reasons)
    return "CPU and GPU contention and throttling" if of_gpu else "CPU contention"


INDEPENDENT_OF_LOAD = "tokens per loop, alpha, quality, losslessness and the hash of all tokens"


class ContentionIncluded(Message):
    """CPU contention in times where nothing is compared, or where prompts are too few on a quiet machine too.

    Attributes:
        reasons: as a summary has them, see ``ContentionMeasured``.
        lost_share: the largest share of an arm's time.
        by_folder: whether the run goes on by its folder as ``--out``, as one of several processes does.
    """

    reasons: tuple[str, ...]
    lost_share: float
    by_folder: bool

    times: ClassVar[str] = "disturbed"
    """How lists and tables call the run's times."""
    decides: ClassVar[bool] = False
    hides_answer: ClassVar[bool] = False
    purpose: ClassVar[str] = "To time it again"
    """Of measuring it again."""

    @property
    def _contention(self) -> str:
        return f"{contention_named(self.reasons)} took {percent(self.lost_share)} of the time measured"

    @property
    def _remedy(self) -> str:
        again = "the same command with --out RUN and" if self.by_folder else "spsbench run --resume RUN"
        return f"{self.purpose}: {again} --remeasure 10min, on an idle machine."

    sentence = "Disturbed: {_contention}, and ms/token includes all of it. {_remedy}"


class ContentionHides(ContentionIncluded):
    """CPU contention that may hide whether speculation pays."""

    times: ClassVar[str] = "undecided"
    hides_answer: ClassVar[bool] = True
    purpose: ClassVar[str] = "To settle it"

    def __str__(self) -> str:
        return (
            f"UNDECIDED: {self._contention}, which may hide the answer. What does not depend on it stands: "
            f"{INDEPENDENT_OF_LOAD}. {self._remedy}"
        )


class ContentionWidened(ContentionIncluded):
    """CPU contention for which intervals are wider; they decide all the same."""

    times: ClassVar[str] = "widened"
    decides: ClassVar[bool] = True

    def __str__(self) -> str:
        lost = percent(self.lost_share)
        return f"Interval widened: {contention_named(self.reasons)} took {lost} of the time measured."


CONTENTION_NOT_COUNTED = (
    "This machine counts neither run-queue wait nor steal time: CPU contention is not known."
)


class WorkersShareMachine(Message):
    """How many workers measured on one machine at once, at most."""

    most: int
    sentence = (
        "Up to {most} workers of this run measured on one machine at once: times are those of a "
        "shared machine, whose memory bandwidth they divide."
    )


class WorkersUnlike(Message):
    """Settings that differ, each with its values: (("cpu", ("EPYC", "Xeon")),)."""

    settings: tuple[tuple[str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        differing = "; ".join(f"{name} {' and '.join(values)}" for name, values in self.settings)
        return (
            f"Workers are unlike: {differing}. All arms of a prompt are measured by one of them, and times "
            "are shown for each kind and not pooled."
        )


class SlowSequences(Message):
    """Sequences with the factor by which each is slower than the arm's median, slowest first."""

    slowest: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        times = listed([f"{name} ({factor:.1f}x)" for name, factor in self.slowest], MOST_NAMED)
        return (
            f"far slower per token than the arm's other sequences: {times}. They count; look for other load "
            "at that time, or repeat."
        )


class TimesContradictLoops(Message):
    """Seconds of an arm and of its loops; the same of the sequence where they differ most."""

    arm: str
    decode_s: float
    loops_s: float
    example: str
    example_decode_s: float
    example_loops_s: float
    sentence = (
        "The times of {arm}, contradict its loops: {decode_s:.4g} s, of which loops took "
        "{loops_s:.4g} s; most of all in {example} ({example_decode_s:.4g} s and "
        "{example_loops_s:.4g} s). Do not use its speedup."
    )


class PromptsUntimed(Message):
    """Prompts, of all that were asked, without a time of an arm or of its baseline."""

    arm: str
    names: tuple[str, ...]
    asked: int

    def __str__(self) -> str:
        return (
            f"{len(self.names)} of {self.asked} prompts were not timed by both {self.arm}, and its baseline: "
            f"the speedup is without {listed(self.names, MOST_NAMED)}."
        )


class RepeatsDiffer(Message):
    """Repeated timings whose tokens were others, one of them by its name."""

    count: int
    example: str
    sentence = (
        "{count} repeated timings generated different tokens from the same seed, e.g. {example}: "
        "what answered is not deterministic."
    )

"""Of a run and its arms: what failed, what is missing, and what its numbers cannot show."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.base.messages import Message
from spsbench.stats.messages.evidence import AlphasDiffer

RAISE_LIMIT = "Raise --limit"
GIVE_MORE_PROMPTS = "Give more prompts"
"""Ways to more prompts than a run had."""

NO_BASELINE = "no ArS arm to compare with, so no speedup. Run with --arms ars,sps."
NO_COMMON_PROMPT = "no prompt was finished by it and by ArS, so no speedup. Continue with --resume."
PROCESSES_DIFFER = "The processes wrote different tokens from the same seeds. `spsbench compare` shows where."

_NOT_TO_BE_USED = "Do not use these numbers; run `spsbench verify`."


@dataclass(frozen=True, slots=True)
class TooFewPrompts(Message):
    """So few prompts, or another unit, under the arm that has fewest; ``remedy``: a way to more."""

    count: int
    unit: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"The speedup rests on {self.count} {self.unit}{'' if self.count == 1 else 's'}: its interval "
            f"cannot hold what none of them met, and {0.95**self.count:.0%} of such runs never meet what "
            f"slows 1 {self.unit} in 20. {self.remedy}."
        )


@dataclass(frozen=True, slots=True)
class SequencesFailed(Message):
    failed: int
    total: int

    def __str__(self) -> str:
        return (
            f"{self.failed} of {self.total} sequences failed and are left out. Their errors are in "
            "samples.jsonl; --resume tries them again."
        )


@dataclass(frozen=True, slots=True)
class SequencesMissing(Message):
    missing: int

    def __str__(self) -> str:
        return f"{self.missing} sequences have not been run. Continue with --resume."


@dataclass(frozen=True, slots=True)
class SpeedupDrifted(Message):
    """Speedups of both halves of a run; ``anytime``: its intervals are those of a confidence sequence."""

    first: float | None
    second: float | None
    anytime: bool

    def __str__(self) -> str:
        interval = "the interval of a run of fixed length" if self.anytime else "its interval"
        return (
            f"the speedup was {self.first:.2f}x in the first half of the run and {self.second:.2f}x in the "
            f"second, outside {interval}. Repeat on a quiet machine; one steady run in twenty does this by "
            "chance."
        )


@dataclass(frozen=True, slots=True)
class AcceptanceOfAnotherRule(Message):
    alphas: AlphasDiffer

    def __str__(self) -> str:
        return f"{self.alphas}, so tokens were not accepted by the stated rule. {_NOT_TO_BE_USED}"


@dataclass(frozen=True, slots=True)
class EvidenceFails(Message):
    """A kind of evidence that alarms, with its reasons."""

    kind: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} fails: {'; '.join(self.reasons)}. {_NOT_TO_BE_USED}"


@dataclass(frozen=True, slots=True)
class GreedyOutputsDiffer(Message):
    """The share of greedy outputs that are those of ArS, and where another first parts from them."""

    identical: float
    sequences: int
    example: str
    position: int

    def __str__(self) -> str:
        return (
            f"{100 * self.identical:.0f}% of {self.sequences} outputs are identical to ArS; the first "
            f"differs in {self.example} at token {self.position}. A numeric tie or a bug: run `spsbench "
            "verify`."
        )


@dataclass(frozen=True, slots=True)
class QualityDiffers(Message):
    """A metric's difference from ArS with its interval, which leaves out 0."""

    metric: str
    difference: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return (
            f"its {self.metric} differs from that of ArS by {self.difference:+.4f} [{self.low:+.4f}, "
            f"{self.high:+.4f}]. One lossless run in twenty does this by chance; repeat with another --seed."
        )


@dataclass(frozen=True, slots=True)
class NoFigure(Message):
    """A metric without a figure of these arms."""

    metric: str
    arms: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.metric} has no figure here of {', '.join(self.arms)}: it comes from a file or a script, "
            "which a report does not run, and none is recorded for these outputs. `spsbench score RUN "
            "--missing` computes it."
        )


@dataclass(frozen=True, slots=True)
class RanEager(Message):
    arm: str
    reason: str

    def __str__(self) -> str:
        return f"{self.arm} ran with the engine eager: {self.reason}."


@dataclass(frozen=True, slots=True)
class EngineNotStarted(Message):
    arm: str
    reason: str

    def __str__(self) -> str:
        return f"{self.arm} was left out, its engine could not be started: {self.reason}."


@dataclass(frozen=True, slots=True)
class SlowDtype(Message):
    """A dtype of 16 bits that was left to the checkpoint, in which few CPUs compute fast."""

    dtype: str

    def __str__(self) -> str:
        return (
            f"The models compute in {self.dtype}, the checkpoint's dtype, over torch. On many CPUs --dtype "
            "float32 is faster, several times where ONNX Runtime covers both models: measure it too before "
            "you judge the baseline."
        )


@dataclass(frozen=True, slots=True)
class PromptsCut(Message):
    count: int

    def __str__(self) -> str:
        several = "prompts have documents that were" if self.count > 1 else "prompt has a document that was"
        return f"{self.count} {several} cut to fit into the models' window."

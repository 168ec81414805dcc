"""Of a run and its arms: what failed, what is missing, and what its numbers cannot show."""

from __future__ import annotations

from spsbench.base.messages import Message
from spsbench.stats.messages.evidence import AlphasDiffer

RAISE_LIMIT = "Raise --limit"
GIVE_MORE_PROMPTS = "Give more prompts"
"""Ways to more prompts than a run had."""

NO_BASELINE = "no ArS arm to compare with, so no speedup. Run with --arms ars,sps."
NO_COMMON_PROMPT = "no prompt was finished by it and by ArS, so no speedup. Continue with --resume."
PROCESSES_DIFFER = "The processes wrote different tokens from the same seeds. `spsbench compare` shows where."

_NOT_TO_BE_USED = "Do not use these numbers; run `spsbench verify`."


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


class SequencesFailed(Message):
    failed: int
    total: int
    sentence = (
        "{failed} of {total} sequences failed and are left out. Their errors are in "
        "samples.jsonl; --resume tries them again."
    )


class SequencesMissing(Message):
    missing: int
    sentence = "{missing} sequences have not been run. Continue with --resume."


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


class AcceptanceOfAnotherRule(Message):
    alphas: AlphasDiffer

    def __str__(self) -> str:
        return f"{self.alphas}, so tokens were not accepted by the stated rule. {_NOT_TO_BE_USED}"


class EvidenceFails(Message):
    """A kind of evidence that alarms, with its reasons."""

    kind: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} fails: {'; '.join(self.reasons)}. {_NOT_TO_BE_USED}"


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


class QualityDiffers(Message):
    """A metric's difference from ArS with its interval, which leaves out 0."""

    metric: str
    difference: float | None
    low: float | None
    high: float | None
    sentence = (
        "its {metric} differs from that of ArS by {difference:+.4f} [{low:+.4f}, "
        "{high:+.4f}]. One lossless run in twenty does this by chance; repeat with another --seed."
    )


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


class RanEager(Message):
    arm: str
    reason: str
    sentence = "{arm} ran with the engine eager: {reason}."


class EngineNotStarted(Message):
    arm: str
    reason: str
    sentence = "{arm} was left out, its engine could not be started: {reason}."


class SlowDtype(Message):
    """A dtype of 16 bits that was left to the checkpoint, in which few CPUs compute fast."""

    dtype: str
    sentence = (
        "The models compute in {dtype}, the checkpoint's dtype, over torch. On many CPUs --dtype "
        "float32 is faster, several times where ONNX Runtime covers both models: measure it too before "
        "you judge the baseline."
    )


class PromptsCut(Message):
    count: int

    def __str__(self) -> str:
        several = "prompts have documents that were" if self.count > 1 else "prompt has a document that was"
        return f"{self.count} {several} cut to fit into the models' window."

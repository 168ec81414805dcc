"""Verdicts on quality against ArS."""

from __future__ import annotations

from spsbench.base.messages import Message
from spsbench.report.wording import NOTHING, brackets, metric_title, speedup
from spsbench.store.summary_types import ParityComparison, Solved, TargetOverDraft

NO_REFERENCE_READ = "Parity: not judged, ROUGE reads none of the references."
MEASURE_ADVANTAGE = "How much better the target is than the draft alone: --arms ars,sps,draft measures it."
PARITY_LEGEND = (
    "Paired by prompt. Equivalent: two one-sided tests put the difference within the margin (p < .05). "
    "Different: the interval leaves out 0. Normalised: (ArS - SpS) / (ArS - draft alone)."
)


def difference(comparison: ParityComparison, digits: int) -> str:
    """``-0.0123 [-0.0200, -0.0046]``, or a dash."""
    if comparison["difference"] is None:
        return NOTHING
    return f"{comparison['difference']:+.{digits}f}{brackets(comparison, f'{{:+.{digits}f}}'.format)}"


class ParityVerdict(Message):
    """Of one arm, e.g. ``equivalent to ArS within ±0.0040 (5% of ...)``; ``identical``: its outputs."""

    comparison: ParityComparison
    digits: int = 4
    identical: bool = False

    def __str__(self) -> str:
        comparison, digits = self.comparison, self.digits
        if comparison["verdict"] is None:
            if self.identical:
                return f"outputs identical on all {comparison['prompts']} prompts"
            return f"not judged, {comparison['reason']}"
        margin = f"±{comparison['margin']:.{digits}f} ({comparison['margin_rule']})"
        if comparison["verdict"] == "equivalent":
            return f"equivalent to ArS within {margin}"
        shown = difference(comparison, digits)
        if comparison["verdict"] == "different":
            return f"different from ArS by {shown}"
        detectable = f"{comparison['minimum_detectable_difference']:.{digits}f}"
        count = comparison["prompts_needed"]
        needs = f"needs about {count:,}" if count else "needs more prompts than can be estimated from so few"
        return (
            f"inconclusive, {shown} against ArS; {comparison['prompts']} prompts can detect a difference of "
            f"{detectable}, showing parity within {margin} {needs}"
        )


class ParityOfArm(Message):
    metric: str
    arm: str
    verdict: ParityVerdict

    def __str__(self) -> str:
        return f"{metric_title(self.metric)} of {self.arm}: {self.verdict}."


class ParityOfMany(Message):
    """How many arms got which verdict; ``prompts_needed``: to show parity of all, 0 where unknown."""

    metric: str
    verdicts: tuple[str, ...]
    prompts_needed: int

    def __str__(self) -> str:
        counts = ", ".join(f"{self.verdicts.count(name)} {name}" for name in dict.fromkeys(self.verdicts))
        needed = f"; showing parity for all needs about {self.prompts_needed:,} prompts"
        more = needed if self.prompts_needed else ""
        return f"{metric_title(self.metric)} of {len(self.verdicts)} arms against ArS: {counts}{more}."


class AdvantageOfTarget(Message):
    metric: str
    advantage: TargetOverDraft

    def __str__(self) -> str:
        found = self.advantage
        ratio = f"no ratio, {found['reason']}"
        if found["ratio"] is not None:
            ratio = speedup({"ratio": found["ratio"], "low": found["low"], "high": found["high"]})
        title = metric_title(self.metric)
        return f"{title} of the target over the draft alone, {found['sampling']}: {ratio}."


class ProblemsSolved(Message):
    arm: str
    solved: Solved

    def __str__(self) -> str:
        solved = self.solved
        test = solved["reason"] if solved["p_value"] is None else f"McNemar p {solved['p_value']:.3f}"
        return (
            f"{self.arm}: problems solved by any sample: {solved['both']} by both, {solved['only_ars']} by "
            f"ArS alone, {solved['only_sps']} by SpS alone; {test}."
        )

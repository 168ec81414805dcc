"""What `replay --curve` and `replay --explain` say of curves and of other tools' counts."""

from __future__ import annotations

from collections.abc import Mapping

from spsbench.base import Message
from spsbench.report import counted

HOLD_AT_ONCE = "Of each table the intervals hold at once, over prompts."
BANDS_HOLD_AT_ONCE = "All K from one reading of the same texts; bands are 95% intervals that hold at once."
COUNTED_WHERE_DRAFTED = "A draft counts as not kept only where there was one, and those before it were kept."
LENGTHS_UNKNOWN = "How long each draft was is not counted: of which loops a draft was kept cannot be said."
LOOPS_UNKNOWN = "Loops are not counted in it: tokens per loop do not follow."
YAML_LENGTHS = (
    "# Tokens per loop, the target's own token included, by num_speculative_tokens;\n"
    "# with 95% intervals over prompts that hold at once for all K of a curve."
)
YAML_RATES = (
    "# The chance that a loop keeps its first draft, the first two, ...: vLLM's --speculative-config\n"
    '# {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [...]}.'
)


class MeanInjected(Message):
    """By how much the P99 of loops is too low where a mean, or the whole distribution, is injected."""

    k: int
    variance: float
    mean_variance: float
    mean_shortfall: float
    rates_shortfall: float

    def __str__(self) -> str:
        vary = f"variance of the drafts kept per loop {self.mean_variance:.2f}, not {self.variance:.2f}"
        mean, rates = map(_off, (self.mean_shortfall, self.rates_shortfall))
        return (
            f"Mean alone injected, at K={self.k}: {vary}; P99 of loops {mean}, {rates} with the whole "
            "distribution."
        )


def _off(share: float) -> str:
    return f"{abs(share):.0%} too {'low' if share >= 0 else 'high'}"


class Autocorrelation(Message):
    by_lag: Mapping[int, float]

    def __str__(self) -> str:
        lags = ", ".join(f"{value:+.2f} at {lag}" for lag, value in self.by_lag.items())
        return f"Autocorrelation of acceptance, by tokens apart: {lags}."


class NoIntervalOverPrompts(Message):
    prompts: int
    sentence = "Too few prompts for an interval: {prompts}."


class PromptsNeeded(Message):
    within: float
    prompts: int

    def __str__(self) -> str:
        return f"For ±{self.within:g} tokens at every K: about {counted(self.prompts, 'prompt')} like these."


class HeavyPrompt(Message):
    share: float

    def __str__(self) -> str:
        share = f"One prompt has {self.share:.0%} of the tokens"
        return f"{share}: other prompts may lie outside of these intervals."


class FilesWritten(Message):
    name: str
    folder: object
    sentence = "Wrote {name}.yaml, .json, .svg, .png and .pdf to {folder}"


class KVaries(Message):
    """``shortest`` is not known where lengths are not counted."""

    shortest: int | None
    longest: int | None
    mean: float

    def __str__(self) -> str:
        span = f"at most {self.longest}" if self.shortest is None else f"{self.shortest} to {self.longest}"
        return (
            f"K varies: {span} drafts per loop, {self.mean:.2f} on average. r' and alpha are those of one K."
        )


class CurvesFall(Message):
    falling: int
    curves: int
    sentence = (
        "{falling} of {curves} curves fall somewhere: over one set of texts none does, unless "
        "drafts depend on K."
    )


class StepsGrow(Message):
    growing: int
    curves: int

    def __str__(self) -> str:
        many = f"{self.growing} of {self.curves}"
        return f"{many} have a step that grows by more than rounding, which is rare."

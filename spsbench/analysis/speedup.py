"""How much faster an arm is than its baseline, with an interval that pairs the prompts.

The estimand is the paper's mean token time, as a ratio: (baseline seconds / baseline tokens) over
(arm seconds / arm tokens), each pooled over all sequences. Never a mean of per-prompt ratios or of
rates: short outputs would weigh as much as long ones. The prompt is the unit that is resampled,
with all its samples in both arms; loops and tokens of one text are not independent.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.analysis.numbers import finite, ratio
from spsbench.records import Speedup

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

RESAMPLES = 2_000
SEED = 20_230_202
_BATCH_CELLS = 1_000_000
_KEY = ["example_id", "sample_index"]


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Seconds and tokens per prompt, [prompts] each, in the order in which they were measured."""

    baseline_s: Floats
    baseline_tokens: Floats
    arm_s: Floats
    arm_tokens: Floats

    def __len__(self) -> int:
        return len(self.arm_s)

    def part(self, where: slice) -> PairedTimes:
        """The same for some of the prompts."""
        return PairedTimes(
            self.baseline_s[where], self.baseline_tokens[where], self.arm_s[where], self.arm_tokens[where]
        )

    def ratio(self) -> float | None:
        """The pooled ratio of time per token; above 1 the arm is faster. None without data."""
        base, arm = _per_token(self.baseline_s, self.baseline_tokens), _per_token(self.arm_s, self.arm_tokens)
        return None if base is None or arm is None else ratio(base, arm)


def finished(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples that ended as they should: neither failed nor without a token."""
    failed = (samples["finish_reason"] == "error") | samples["error"].notna()
    return samples[~failed & (samples["new_tokens"] > 0)]


def pair(baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False) -> PairedTimes:
    """Match the samples of two arms and sum them per prompt.

    A sequence counts only if it finished in both arms, so that a failure or an interrupted run
    cannot leave the two arms with different prompts.

    Args:
        baseline: rows of ``samples`` of the baseline arm.
        arm: rows of ``samples`` of the arm that is judged.
        prefill: count prefill too (end to end) instead of decoding alone.
    """
    needed = [*_KEY, "new_tokens", "prefill_s", "decode_s"]
    sides = (finished(frame).filter(needed) for frame in (baseline, arm))
    both = next(sides).merge(next(sides), on=_KEY, suffixes=("_base", "_arm"), sort=False)
    for side in ("base", "arm"):
        extra = both[f"prefill_s_{side}"] if prefill else 0.0
        both[f"time_{side}"] = both[f"decode_s_{side}"] + extra
    columns = ["time_base", "new_tokens_base", "time_arm", "new_tokens_arm"]
    prompts = both.groupby("example_id", sort=False)[columns].sum()
    return PairedTimes(*(prompts[name].to_numpy(dtype=np.float64) for name in columns))


def speedup(times: PairedTimes) -> Speedup | None:
    """The ratio with its paired 95% interval: BCa over prompts, about 2,000 resamples, fixed seed.

    Bias-corrected and accelerated (Efron 1987) by scipy. Below some 20 prompts it covers less than
    it says. The ends are None where they cannot be had: one prompt, or prompts without variation.

    Returns:
        None without a prompt that both arms finished.
    """
    point = times.ratio()
    if point is None:
        return None
    low, high = _interval(times) if len(times) > 1 else (None, None)
    return Speedup(point, low, high)


def halves(times: PairedTimes) -> tuple[float | None, float | None]:
    """The ratio in the first and in the second half of the run, by time of measurement."""
    middle = len(times) // 2
    return times.part(slice(0, middle)).ratio(), times.part(slice(middle, None)).ratio()


def drifted(times: PairedTimes, whole: Speedup) -> bool:
    """Whether a half's ratio leaves the whole's interval.

    A half differs from the whole with the whole's own standard error, and the two halves mirror
    each other, so a steady run leaves the interval in about one case of twenty.
    """
    if whole.low is None or whole.high is None:
        return False
    return any(half is not None and not whole.low <= half <= whole.high for half in halves(times))


def share_slower(times: PairedTimes) -> float | None:
    """Share of prompts whose own speedup is below 1: whom the mean does not speak for."""
    if not len(times):
        return None
    arm, base = times.arm_s / times.arm_tokens, times.baseline_s / times.baseline_tokens
    return float(np.mean(arm > base))


def _per_token(seconds: Floats, tokens: Floats) -> float | None:
    return ratio(float(seconds.sum()), float(tokens.sum()))


def _pooled_ratio(
    base_s: Any, base_tokens: Any, arm_s: Any, arm_tokens: Any, axis: int = -1
) -> npt.NDArray[np.float64]:
    base = base_s.sum(axis) / base_tokens.sum(axis)
    return np.asarray(base / (arm_s.sum(axis) / arm_tokens.sum(axis)))


def _interval(times: PairedTimes) -> tuple[float | None, float | None]:
    from scipy.stats import bootstrap

    data = (times.baseline_s, times.baseline_tokens, times.arm_s, times.arm_tokens)
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")  # data without variation: scipy warns and answers NaN
        result = bootstrap(
            data,
            _pooled_ratio,
            paired=True,
            vectorized=True,
            method="BCa",
            n_resamples=RESAMPLES,
            batch=max(1, _BATCH_CELLS // len(times)),
            rng=np.random.default_rng(SEED),
        )
    low, high = finite(result.confidence_interval.low), finite(result.confidence_interval.high)
    if low is None or high is None or np.isclose(low, high, rtol=1e-12, atol=0.0):
        return None, None
    return low, high

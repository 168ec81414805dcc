"""How much faster an arm is than its baseline, with an interval that pairs the prompts.

The estimand is the paper's mean token time, as a ratio: (baseline seconds / baseline tokens) over
(arm seconds / arm tokens), each pooled over all sequences. Never a mean of per-prompt ratios or of
rates: short outputs would weigh as much as long ones. The prompt is the unit that is resampled,
with all its samples in both arms; loops and tokens of one text are not independent, nor are the turns
of a conversation, which is then the unit: its later turns are paired though their prompts may differ,
since each holds the arm's own answers. Where prompts
were measured in waves, for batches, it is the wave: what disturbs a wave disturbs all of its rows.

Memory layout, packing choices, clocks and autotuning are drawn once per process (Kalibera and Jones
2013, "Rigorous benchmarking in reasonable time"): an interval over the prompts of one process, or
over the pooled prompts of several, does not contain that draw and covers too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.records import Speedup
from spsbench.stats.bootstrap import LEVEL, pooled_interval, pseudo_values, quantiles, ratio
from spsbench.store.summary_types import RatioInterval

if TYPE_CHECKING:
    import pandas as pd


SEQUENCE = ("example_id", "sample_index", "process")
"""What a sequence of an arm is known by; ``process`` where several processes were pooled."""


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Seconds and tokens per prompt, [prompts] each, in the order in which they were measured.

    Of several processes [processes, prompts] each; 0 where not measured.
    """

    baseline_s: Floats
    baseline_tokens: Floats
    arm_s: Floats
    arm_tokens: Floats

    def __len__(self) -> int:
        return len(self.arm_s)

    def columns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """All four, as ``pooled_interval`` takes them."""
        return self.baseline_s, self.baseline_tokens, self.arm_s, self.arm_tokens

    def ratio(self) -> float | None:
        """The pooled ratio of time per token; above 1 the arm is faster. None without data."""
        base_s, base_tokens, arm_s, arm_tokens = (float(column.sum()) for column in self.columns())
        base, arm = ratio(base_s, base_tokens), ratio(arm_s, arm_tokens)
        return None if base is None or arm is None else ratio(base, arm)


def finished(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that ended as they should: neither failed nor without a token."""
    # Asked some fifty times of the same tables: arrays, and the table itself where all of it ended so.
    failed = (samples["finish_reason"].to_numpy() == "error") | samples["error"].notna().to_numpy()
    ended = ~failed & (column(samples, "new_tokens") > 0)
    return samples if ended.all() else samples[ended]


def matched_by(*frames: pd.DataFrame) -> list[str]:
    """Return the columns by which sequences of these tables belong together."""
    return [name for name in SEQUENCE if all(name in frame for frame in frames)]


def pair(baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False) -> PairedTimes:
    """Return ``paired_sums`` as arrays."""
    return PairedTimes(*paired_sums(baseline, arm, prefill=prefill).to_numpy(dtype=np.float64).T)


def paired_sums(baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False) -> pd.DataFrame:
    """Match the samples of two arms and sum them per prompt.

    A sequence counts only if it finished in both arms, so that a failure or an interrupted run
    cannot leave the two arms with different prompts. The columns are seconds and tokens of the baseline,
    then of the arm, by example_id, or by wave where there are waves.
    """
    import pandas as pd

    left, right = row_by_row(baseline, arm)
    sides = {
        f"{name}_{side}": values
        for side, frame in (("base", left), ("arm", right))
        for name, values in (
            ("time", column(frame, "decode_s") + (column(frame, "prefill_s") if prefill else 0.0)),
            ("new_tokens", column(frame, "new_tokens")),
        )
    }
    return pd.DataFrame(sides).groupby(pd.Series(unit_of(left).array, name="unit"), sort=False).sum()


def row_by_row(baseline: pd.DataFrame, arm: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The samples of ``in_both``, each sequence in the same row of both."""
    left, right = finished(baseline), finished(arm)
    key = matched_by(left, right)
    if _same_sequences(left, right, key):
        return left, right
    rows = [frame[key].assign(**{name: range(len(frame))}) for name, frame in (("l", left), ("r", right))]
    both = rows[0].merge(rows[1], on=key, sort=False)
    return left.iloc[both["l"]], right.iloc[both["r"]]


def _same_sequences(left: pd.DataFrame, right: pd.DataFrame, key: Sequence[str]) -> bool:
    """Whether two tables have the same sequences in the same order, as arms of a whole run have."""
    return len(left) == len(right) and all(
        bool((left[name].to_numpy() == right[name].to_numpy()).all()) for name in key
    )


def unit_of(samples: pd.DataFrame) -> pd.Series[str]:
    """Return what each sample is resampled with: its conversation, or the wave of its prompt."""
    prompts = conversation_of(samples)
    return prompts if "wave" not in samples else samples["wave"].fillna(prompts)


def conversation_of(samples: pd.DataFrame) -> pd.Series[str]:
    """Return the prompt of each sample; for a later turn the first turn's.

    Turns of one conversation are not independent.
    """
    prompts = samples["example_id"]
    return prompts if "conversation" not in samples else samples["conversation"].fillna(prompts)


def speedup_over_prompts(times: PairedTimes) -> Speedup | None:
    """Return the ratio with its paired 95% interval over prompts (see ``pooled_interval``).

    The ends are None where they do not exist: one prompt, or prompts without variation.
    """
    point = times.ratio()
    return (
        None if point is None else Speedup(point, *pooled_interval(times.columns(), ratio_of_sums, log=True))
    )


def pair_processes(baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False) -> PairedTimes:
    """Return ``paired_sums`` for each value of the column ``process``.

    The same prompts may have run in every process (better: it separates the two effects), or each
    process may have had its own.
    """
    import pandas as pd

    arms = dict(list(arm.groupby("process")))
    frames = [
        paired_sums(part, arms[process], prefill=prefill)
        for process, part in baseline.groupby("process")
        if process in arms
    ]
    prompts = pd.Index(dict.fromkeys(example for frame in frames for example in frame.index))
    filled = [frame.reindex(prompts, fill_value=0.0).to_numpy(dtype=np.float64).T for frame in frames]
    return PairedTimes(*(np.stack(filled, axis=1) if filled else np.zeros((4, 0, 0))))


def speedup_over_processes(times: PairedTimes) -> Speedup | None:
    """Return the pooled ratio with a 95% interval for processes and prompts alike.

    The variances between processes and between prompts add up, which errs on the wide side (as the
    pigeonhole bootstrap does, Owen 2007, Annals of Applied Statistics 1(2)), with Student's quantile for
    the processes: two of them give a wide interval, and should.
    """
    point = times.ratio()
    if point is None or not point > 0:
        return None
    cells = np.stack(times.columns())
    if cells.shape[1] < 2:
        return Speedup(point, None, None)
    with np.errstate(all="ignore"):
        processes, prompts = (
            pseudo_values([*cells.sum(axis)], lambda sums: np.log(ratio_of_sums(sums))) for axis in (2, 1)
        )
    error = math.sqrt(sum(each.var(ddof=1) / len(each) for each in (processes, prompts) if len(each) > 1))
    if not 1e-12 < error < math.inf:
        return Speedup(point, None, None)
    below, above = quantiles(processes, (1.0 + LEVEL) / 2.0)
    return Speedup(point, point * math.exp(-below * error), point * math.exp(above * error))


def shown(speedup: Speedup | None) -> RatioInterval | None:
    """Return a speedup as ``summary.json`` has it."""
    return None if speedup is None else {"ratio": speedup.ratio, "low": speedup.low, "high": speedup.high}


Ends = tuple[float | None, float | None]


def hidden(ends: Ends, over: float, under: float) -> Ends:
    """Widen the ends of a ratio of times by CPU contention's share of either; None where that is all.

    The upper time may be too long by its share, and the lower one by its own: each moves one end.
    """
    low, high = ends
    if low is None or high is None or max(over, under) >= 1.0:
        return None, None
    return low * (1.0 - over), high / (1.0 - under)


def halves(times: PairedTimes) -> tuple[float | None, float | None]:
    """Return the ratio in the first and in the second half of the run, by time of measurement."""
    middle = len(times) // 2
    columns = times.columns()
    first, second = ([column[part] for column in columns] for part in (slice(middle), slice(middle, None)))
    return PairedTimes(*first).ratio(), PairedTimes(*second).ratio()


def drifted(times: PairedTimes, whole: Speedup) -> bool:
    """Return whether a half's ratio leaves the whole's interval.

    A half differs from the whole with the whole's own standard error, and the two halves mirror
    each other, so a steady run leaves the interval in about one case of twenty.
    """
    if whole.low is None or whole.high is None:
        return False
    return any(half is not None and not whole.low <= half <= whole.high for half in halves(times))


def share_slower(times: PairedTimes) -> float | None:
    """Return the share of prompts whose own speedup is below 1: prompts that the mean misrepresents."""
    if not len(times):
        return None
    arm, base = times.arm_s / times.arm_tokens, times.baseline_s / times.baseline_tokens
    return float(np.mean(arm > base))


def ratio_of_sums(sums: Floats) -> Floats:
    """[m] speedups of sums [4, m], in the order of ``PairedTimes``."""
    base_s, base_tokens, arm_s, arm_tokens = sums
    return np.asarray(base_s / base_tokens / (arm_s / arm_tokens))


@dataclass(frozen=True, slots=True)
class ArmSums:
    """Totals over sequences of one arm; seconds are NaN where a phase was not seen.

    Attributes:
        seconds, tokens: decoding time and output tokens, from the samples.
        drafted, accepted, tested, beta: as in ``Loop``, summed.
        draft_s, verify_s, sample_s: seconds of the phases, summed; communication of a split target, which is
            part of what its forward costs, with ``verify_s``.
        rollback_s: seconds in which running states were put back; 0 where there are none.
        at_once: whether ``verify_s`` has the seconds of ``sample_s`` too, which are then 0.
    """

    seconds: float
    tokens: float
    loops: float
    drafted: float
    accepted: float
    tested: float
    beta: float
    draft_s: float
    verify_s: float
    sample_s: float
    rollback_s: float = 0.0
    at_once: bool = False

    def with_samples(self) -> Self:
        """Return the sums with forward and what follows it as one phase."""
        return replace(self, verify_s=self.verify_s + self.sample_s, sample_s=0.0, at_once=True)

    @property
    def sees_phases(self) -> bool:
        """Whether every phase of every loop was timed."""
        return bool(np.isfinite(self.draft_s + self.verify_s + self.sample_s))

    @property
    def alpha(self) -> float:
        """``alpha_beta``, or ``alpha_tested`` where beta was not recorded; needs at least one test."""
        passed = self.beta if np.isfinite(self.beta) else self.accepted
        return float(min(max(passed / self.tested, 0.0), 1.0))

    @property
    def length(self) -> float:
        return 1.0 + self.accepted / self.loops


def in_both(baseline: pd.DataFrame, arm: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the samples of two arms whose sequence finished in both, matched within their process."""
    import pandas as pd

    left, right = finished(baseline), finished(arm)
    key = matched_by(left, right)
    if _same_sequences(left, right, key):
        return left, right
    baseline_keys, arm_keys = (pd.MultiIndex.from_frame(frame[key]) for frame in (left, right))
    return left[baseline_keys.isin(arm_keys)], right[arm_keys.isin(baseline_keys)]


def loops_of(loops: pd.DataFrame, samples: pd.DataFrame, everything: int) -> pd.DataFrame:
    if len(samples) == everything:
        return loops
    key = matched_by(loops, samples)
    return loops.merge(samples[key], on=key, sort=False)


def arm_sums(samples: pd.DataFrame, loops: pd.DataFrame) -> ArmSums | None:
    """Return totals of matching samples and loops; None where not every loop of them was seen."""
    tokens = float(samples["new_tokens"].sum())
    emitted = float(column(loops, "emitted").sum()) if len(loops) else 0.0
    if not tokens or emitted != tokens:
        return None
    phases = {name: float(column(loops, name).sum()) for name in ("draft_s", "verify_s", "sample_s")}
    if "comm_s" in loops:  # only a split target has any
        phases["verify_s"] += float(np.nansum(column(loops, "comm_s")))
    drafted, accepted, tested, beta = (
        float(column(loops, name).sum()) for name in ("drafted", "accepted", "tested", "beta_sum")
    )
    return ArmSums(
        seconds=float(samples["decode_s"].sum()),
        tokens=tokens,
        loops=float(len(loops)),
        drafted=drafted,
        accepted=accepted,
        tested=tested,
        beta=beta,
        draft_s=phases["draft_s"],
        verify_s=phases["verify_s"],
        sample_s=phases["sample_s"],
        rollback_s=float(np.nansum(column(loops, "rollback_s"))) if "rollback_s" in loops else 0.0,
    )


def column(frame: pd.DataFrame, name: str) -> Floats:
    """Return a column as float64, missing values as NaN."""
    return np.asarray(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))

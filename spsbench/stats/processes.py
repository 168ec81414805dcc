"""The speedup over several processes, with an interval that contains what differs between them.

Memory layout, packing choices, clocks and autotuning are drawn once per process (Kalibera and Jones
2013, "Rigorous benchmarking in reasonable time"): an interval over the prompts of one process, or
over the pooled prompts of several, does not contain that draw and covers too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spsbench.records import Speedup
from spsbench.stats.anytime import anytime_speedup
from spsbench.stats.bootstrap import LEVEL, pseudo_values, quantiles, ratio
from spsbench.stats.speedup import pair, paired_sums, ratio_of_sums, speedup

if TYPE_CHECKING:
    import pandas as pd


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Seconds and tokens by process and prompt, [processes, prompts] each; 0 where not measured."""

    baseline_s: Floats
    baseline_tokens: Floats
    arm_s: Floats
    arm_tokens: Floats

    def cells(self) -> Floats:
        """All four, [4, processes, prompts]."""
        return np.stack([self.baseline_s, self.baseline_tokens, self.arm_s, self.arm_tokens])


def paired_speedup(
    baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False, anytime: bool = False
) -> Speedup | None:
    """Over the prompts of one process, or over several processes and their prompts; see ``speedup``."""
    if anytime:
        return anytime_speedup(pair(baseline, arm, prefill=prefill))
    if "process" in arm and arm["process"].nunique() > 1:
        return speedup_over_processes(pair_processes(baseline, arm, prefill=prefill))
    return speedup(pair(baseline, arm, prefill=prefill))


def pair_processes(baseline: pd.DataFrame, arm: pd.DataFrame, *, prefill: bool = False) -> ProcessTimes:
    """``paired_sums`` for each value of the column ``process``; a sequence is matched within its process.

    The same prompts may have run in every process (better: it separates the two effects), or each
    process may have had its own.
    """
    import pandas as pd

    arms = dict(list(arm.groupby("process")))
    frames = []
    for process, part in baseline.groupby("process"):
        if process in arms:
            frames.append(paired_sums(part, arms[process], prefill=prefill))
    prompts = pd.Index(dict.fromkeys(example for frame in frames for example in frame.index))
    filled = [frame.reindex(prompts, fill_value=0.0).to_numpy(dtype=np.float64).T for frame in frames]
    cells = np.stack(filled, axis=1) if filled else np.zeros((4, 0, 0))
    return ProcessTimes(*cells)


def speedup_over_processes(times: ProcessTimes) -> Speedup | None:
    """The pooled ratio with a 95% interval for processes and prompts alike.

    The variances between processes and between prompts add up, which errs on the wide side (as the
    pigeonhole bootstrap does, Owen 2007, Annals of Applied Statistics 1(2)), with Student's quantile for
    the processes: two of them give a wide interval, and should.
    """
    cells = times.cells()
    point = _ratio(cells.sum((1, 2)))
    if point is None or not point > 0:
        return None
    n = cells.shape[1]
    if n < 2:
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


def _ratio(sums: Sequence[float] | Floats) -> float | None:
    base_s, base_tokens, arm_s, arm_tokens = (float(value) for value in sums)
    base, arm = ratio(base_s, base_tokens), ratio(arm_s, arm_tokens)
    return None if base is None or arm is None else ratio(base, arm)

"""The sequences that two arms both finished, and sums over their loops: what factors are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spsbench.analysis.speedup import finished

if TYPE_CHECKING:
    import pandas as pd

_KEY = ("example_id", "sample_index", "process")
PHASES = ("draft", "verify", "sample")


@dataclass(frozen=True, slots=True)
class ArmSums:
    """Totals over sequences of one arm; seconds are NaN where a phase was not seen.

    Attributes:
        seconds, tokens: decoding time and output tokens, from the samples.
        loops: number of target calls.
        drafted, accepted, tested, beta: as in ``Loop``, summed.
        draft_s, verify_s, sample_s: seconds of the phases, summed.
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
        """``mean_acceptance_length``."""
        return 1.0 + self.accepted / self.loops


def in_both(baseline: pd.DataFrame, arm: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The samples of two arms whose sequence finished in both, matched within their process."""
    import pandas as pd

    left, right = finished(baseline), finished(arm)
    key = [name for name in _KEY if name in left and name in right]
    ours, theirs = (pd.MultiIndex.from_frame(frame[key]) for frame in (left, right))
    return left[ours.isin(theirs)], right[theirs.isin(ours)]


def loops_of(loops: pd.DataFrame, samples: pd.DataFrame, everything: int) -> pd.DataFrame:
    """The loops of some samples of an arm.

    Args:
        loops: of the whole arm.
        samples: those that count.
        everything: how many samples the arm has; with all of them nothing needs to be looked up.
    """
    if len(samples) == everything:
        return loops
    key = [name for name in _KEY if name in loops and name in samples]
    return loops.merge(samples[key], on=key, sort=False)


def arm_sums(samples: pd.DataFrame, loops: pd.DataFrame) -> ArmSums | None:
    """Totals of matching samples and loops; None where not every loop of them was seen."""
    tokens = float(samples["new_tokens"].sum())
    emitted = float(column(loops, "emitted").sum()) if len(loops) else 0.0
    if not tokens or emitted != tokens:
        return None
    return ArmSums(
        seconds=float(samples["decode_s"].sum()),
        tokens=tokens,
        loops=float(len(loops)),
        **{name: float(column(loops, name).sum()) for name in ("drafted", "accepted", "tested")},
        beta=float(column(loops, "beta_sum").sum()),
        **{f"{phase}_s": float(column(loops, f"{phase}_s").sum()) for phase in PHASES},
    )


def column(frame: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    """A column as float64, missing values as NaN."""
    return np.asarray(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))

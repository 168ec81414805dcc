"""Whether speculation can pay on this machine, without a task: forwards, floors, and forced acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spsbench.base import SamplingParams

if TYPE_CHECKING:
    from spsbench.parts.whatif.bench.forced import SyntheticAcceptance

LARGEST_ROWS = 9
"""t(n) is shown up to here, whatever the Ks."""

FORCED_TOKENS = 48
"""Of a sequence with synthetic acceptance."""


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What to measure.

    Attributes:
        budget_s: seconds for the forwards, and as many again for synthetic acceptance.
        batches: sizes; none for a study of one sequence.
    """

    ks: tuple[int, ...]
    contexts: tuple[int, ...]
    budget_s: float
    sampling: SamplingParams
    acceptance: SyntheticAcceptance | None
    seed: int
    batches: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """The only context, or the longest."""
        return self.contexts[-1]

    @property
    def rows(self) -> tuple[int, ...]:
        """How many rows of the target are timed."""
        return tuple(sorted({*range(1, LARGEST_ROWS + 1), *(k + 1 for k in self.ks)}))

    @property
    def tokens(self) -> int:
        """The longest sequence that any part of the measurement needs."""
        return self.context + max(LARGEST_ROWS, FORCED_TOKENS + max(self.ks) + 1)

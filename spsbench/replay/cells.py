"""Totals of a drafter and a K over all texts: tokens per loop, and the loops of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spsbench.law.text_loops import Floats, TextLoops
from spsbench.records import Interval, Spec
from spsbench.replay.texts import TargetText
from spsbench.stats.bootstrap import pooled_ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """One drafter with one K, predicted.

    Attributes:
        r_prime: as a share of K+1 (Chen et al. 2023).
        emitted: [K+1] the share of loops that emit 1 to K+1 tokens.
    """

    drafter: Spec
    draft: str
    k: int
    tokens_per_loop: Interval
    emitted: Floats
    loops: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Of the drafter, with its draft model where several are compared."""
        return f"{self.drafter} of {self.draft}" if self.draft else str(self.drafter)

    @property
    def r_prime(self) -> float:
        """Tokens per loop over K+1."""
        return self.tokens_per_loop.estimate / (self.k + 1)


QUANTILES = (0.5, 0.9, 0.99)


def cell(drafter: Spec, draft: str, k: int, texts: Sequence[TargetText], laws: Sequence[TextLoops]) -> Cell:
    """Predict one cell."""
    names = list(dict.fromkeys(text.name for text in texts))
    tokens, loops = np.zeros(len(names)), np.zeros(len(names))
    emitted, longest = np.zeros(k + 1), max(len(text.tokens) for text in texts)
    counts = np.zeros(longest + 1)
    for text, law in zip(texts, laws, strict=True):
        prompt = names.index(text.name)
        tokens[prompt] += len(text.tokens)
        loops[prompt] += law.loops
        emitted += law.emitted()
        counts[: len(text.tokens) + 1] += law.counts
    return Cell(drafter, draft, k, pooled_ratio(tokens, loops), emitted / emitted.sum(), _quantiles(counts))


def _quantiles(counts: Floats) -> tuple[int, int, int]:
    below = np.cumsum(counts) / counts.sum()
    p50, p90, p99 = (int(np.searchsorted(below, share - 1e-12)) for share in QUANTILES)
    return p50, p90, p99

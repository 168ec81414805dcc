"""What Leviathan et al. 2022 print in Tables 1 to 3: quoted, to stand beside what is measured here."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """A row of Table 1, for c = c^ = 0; K is the paper's gamma."""

    alpha: float
    k: int
    operations: float
    speed: float


class Walltime(NamedTuple):
    """A row of Table 2: T5-XXL with a smaller T5 as its draft on a TPU-v4; K is the paper's gamma."""

    task: str
    draft: str
    temperature: int
    k: int
    alpha: float
    speed: float


class Alpha(NamedTuple):
    """A row of Table 3 whose target is T5-XXL."""

    task: str
    draft: str
    temperature: int
    alpha: float


TABLE_1 = (
    Expected(0.6, 2, 1.53, 1.96),
    Expected(0.7, 3, 1.58, 2.53),
    Expected(0.8, 2, 1.23, 2.44),
    Expected(0.8, 5, 1.63, 3.69),
    Expected(0.9, 2, 1.11, 2.71),
    Expected(0.9, 10, 1.60, 6.86),
)

TABLE_2 = (
    Walltime("ende", "small", 0, 7, 0.75, 3.4),
    Walltime("ende", "base", 0, 7, 0.80, 2.8),
    Walltime("ende", "large", 0, 7, 0.82, 1.7),
    Walltime("ende", "small", 1, 7, 0.62, 2.6),
    Walltime("ende", "base", 1, 5, 0.68, 2.4),
    Walltime("ende", "large", 1, 3, 0.71, 1.4),
    Walltime("cnndm", "small", 0, 5, 0.65, 3.1),
    Walltime("cnndm", "base", 0, 5, 0.73, 3.0),
    Walltime("cnndm", "large", 0, 3, 0.74, 2.2),
    Walltime("cnndm", "small", 1, 5, 0.53, 2.3),
    Walltime("cnndm", "base", 1, 3, 0.55, 2.2),
    Walltime("cnndm", "large", 1, 3, 0.56, 1.7),
)

TABLE_3 = (
    Alpha("ende", "unigram", 0, 0.08),
    Alpha("ende", "bigram", 0, 0.20),
    Alpha("ende", "unigram", 1, 0.07),
    Alpha("ende", "bigram", 1, 0.19),
    Alpha("cnndm", "unigram", 0, 0.13),
    Alpha("cnndm", "bigram", 0, 0.23),
    Alpha("cnndm", "unigram", 1, 0.08),
    Alpha("cnndm", "bigram", 1, 0.16),
    *(Alpha(row.task, row.draft, row.temperature, row.alpha) for row in TABLE_2),
)


def walltime(task: str, draft: str, temperature: int) -> Walltime | None:
    """The paper's row of Table 2 under these names, if it has one."""
    return next((row for row in TABLE_2 if row[:3] == (task, draft, temperature)), None)


def alpha(task: str, draft: str, temperature: int) -> float | None:
    """The paper's alpha in Table 3 under these names, if it has one."""
    return next((row.alpha for row in TABLE_3 if row[:3] == (task, draft, temperature)), None)

"""How much the tests of a sampler draw, and the names of the faults that can be planted in it."""

from __future__ import annotations

from dataclasses import dataclass

Sizes = tuple[tuple[int, int], ...]
"""(V, K) of tables."""

FAULTS = (
    *("inverted-ratio", "lecture-test", "constant-uniform", "no-residual", "raw-draft", "bonus-from-draft"),
    *("row-off-by-one", "residual-row", "one-uniform", "unscaled-residual", "stale-cache", "wrong-position"),
    *("lenience", "nucleus-at-one", "nucleus-before-top-k", "repeated-block", "one-seed", "untimed-draft"),
)
"""``controls.NAMES``, known without the code of the faults."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn and read.

    Attributes:
        tables, wide_tables: (V, K) of the enumeration, see ``enumerated``.
    """

    draws: int = 20_000
    end_to_end: int = 2_000
    contexts: int = 2
    prompts: int = 8
    outputs: int = 16
    tables: Sizes = ((2, 4), (3, 3), (4, 2), (5, 2))
    wide_tables: Sizes = ((5, 4),)

    @classmethod
    def reduced(cls) -> Effort:
        """Enough to catch every control, in seconds each."""
        tables: dict[str, Sizes] = {"tables": ((2, 2), (3, 2)), "wide_tables": ((4, 3),)}
        return cls(draws=200, end_to_end=300, contexts=10, prompts=4, outputs=10, **tables)

    @property
    def needed(self) -> int:
        """How many prompts the tests want; each gives one context at most."""
        return max(self.prompts, self.contexts, self.outputs)


EFFORTS = {"full": Effort(), "reduced": Effort.reduced()}

"""How much the tests of a sampler draw, what each of them finds, and which faults can be planted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spsbench.base import Message

if TYPE_CHECKING:
    from spsbench.parts.verify.messages import Measurement, Numbers

Sizes = tuple[tuple[int, int], ...]
"""(V, K) of tables."""

FAULTS = (
    "inverted-ratio",
    "lecture-test",
    "constant-uniform",
    "no-residual",
    "raw-draft",
    "bonus-from-draft",
    "row-off-by-one",
    "residual-row",
    "one-uniform",
    "unscaled-residual",
    "stale-cache",
    "wrong-position",
    "lenience",
    "draft-noise-replaces",
    "draft-noise-tests",
    "test-noise-replaces",
    "one-noise",
    "dropped-short",
    "drawn-token-stop",
    "overwritten-mass",
    "argmax-by-uniform",
    "argmax-by-softmax",
    "nucleus-at-one",
    "nucleus-before-top-k",
    "repeated-block",
    "one-seed",
    "untimed-draft",
)
"""The names in ``controls``, known before torch is imported."""


TREE_FAULTS = (
    "stopped at the first failure",
    "product as threshold",
    "token-wise residual",
    "most probable, told as drawn",
    "not normalised",
    "residual of the next sibling",
    "bonus from the row above",
)
"""The names in ``tree_faults``, known before torch is imported."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn and read; ``tables`` and ``wide_tables`` are the (V, K) of the enumeration."""

    draws: int = 20_000
    end_to_end: int = 2_000
    contexts: int = 2
    prompts: int = 8
    outputs: int = 16
    tables: Sizes = ((2, 4), (3, 3), (4, 2), (5, 2))
    wide_tables: Sizes = ((5, 4),)

    @property
    def needed(self) -> int:
        """How many prompts the tests want; each gives one context at most."""
        return max(self.prompts, self.contexts, self.outputs)


# The reduced one is enough to catch every control, in seconds each.
EFFORTS = {"full": Effort(), "reduced": Effort(200, 300, 10, 4, 10, ((2, 2), (3, 2)), ((4, 3),))}

SKIPPED, LOSSY = "skipped", "lossy by design"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one test, with what it rests on; ``unjudged`` says why there is none: ``SKIPPED`` or
    ``LOSSY``."""

    test: str
    passed: bool
    message: Message | str
    bounds: Message | str = "nothing"
    numbers: Numbers = field(default_factory=dict)
    unjudged: str = ""
    fault: str = ""

    @property
    def found(self) -> str:
        return str(self.message)

    @property
    def verdict(self) -> str:
        return self.unjudged or ("ok" if self.passed else "FAILED")

    def record(self) -> dict[str, Any]:
        """The finding for JSON, in sentences."""
        return {
            "test": self.test,
            "passed": self.passed,
            "found": self.found,
            "bounds": str(self.bounds),
            "numbers": self.numbers,
            "unjudged": self.unjudged,
            "fault": self.fault,
            "verdict": self.verdict,
        }


def measured(test: str, passed: bool, result: Measurement) -> Finding:
    return Finding(test, passed, result, result.excludes, result.numbers)


def skipped(test: str, reason: Message | str) -> Finding:
    return Finding(test, True, reason, unjudged=SKIPPED)

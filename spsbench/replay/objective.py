"""What advice minimises."""

from __future__ import annotations

MEAN, P99 = OBJECTIVES = ("mean", "p99")
"""Time per token; time of the slowest hundredth of sequences."""

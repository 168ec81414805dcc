"""What any drafter and any K would give on texts that the target has already written."""

from __future__ import annotations

MEAN, P99 = OBJECTIVES = ("mean", "p99")
"""What advice minimises: time per token; time of the slowest hundredth of sequences."""

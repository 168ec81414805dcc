"""What engines say of their rules, and of what they cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.base.messages import Message

ASSISTED_RULE = "transformers: modified rejection where it samples, equality with the argmax where greedy"
LOOKUP_RULE = "transformers: a token drawn from the target must equal the proposed one"


@dataclass(frozen=True, slots=True)
class NoGraphs(Message):
    """A feature that cannot be captured."""

    feature: str

    def __str__(self) -> str:
        return f"{self.feature} has no graphs"

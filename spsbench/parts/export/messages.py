"""What a person is told about an export."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.base.messages import Message


@dataclass(frozen=True, slots=True)
class NoBinaryScore(Message):
    """Why the samples of an arm are left out."""

    arm: str

    def __str__(self) -> str:
        return f"{self.arm}: its samples, which no metric marks right or wrong"

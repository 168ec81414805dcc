"""What a person is told about an export."""

from __future__ import annotations

from spsbench.base import Message


class NoBinaryScore(Message):
    """Why the samples of an arm are left out."""

    arm: str
    sentence = "{arm}: its samples, which no metric marks right or wrong"

"""What engines say of their rules, and of what they cannot run."""

from __future__ import annotations

from spsbench.base.messages import Message

ASSISTED_RULE = "transformers: modified rejection where it samples, equality with the argmax where greedy"
LOOKUP_RULE = "transformers: a token drawn from the target must equal the proposed one"


class NoGraphs(Message):
    """A feature that cannot be captured."""

    feature: str
    sentence = "{feature} has no graphs"

"""Which strings belong to training and which are held out: decided by hash, so that nobody keeps lists."""

from __future__ import annotations

import hashlib
from typing import Literal

Part = Literal["train", "heldout"]

HELDOUT_SHARE = 0.1


def part_of(*words: str) -> Part:
    """The part that a name, a combination of templates or a sequence of operations belongs to."""
    digest = hashlib.sha256("\x1f".join(words).encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return "heldout" if share < HELDOUT_SHARE else "train"

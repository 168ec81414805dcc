"""Two halves of the prompts: what is chosen on one is judged on the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

FEWEST_PROMPTS = 8
"""With fewer no arm is chosen among several: each half rests on too little."""

_SPLIT_SEED = b"spsbench recommendation 1"


def halves(examples: Iterable[str]) -> tuple[list[str], list[str]]:
    """Two halves of the prompts, by their names and a seed alone."""
    ordered = sorted(examples, key=_lot)
    return ordered[::2], ordered[1::2]


def _lot(example: str) -> bytes:
    """The prompt's place in a shuffle that depends on its name and the seed alone."""
    return hashlib.sha256(_SPLIT_SEED + str(example).encode("utf-8", "replace")).digest()

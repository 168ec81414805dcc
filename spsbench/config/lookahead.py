"""K, the lookahead: how many tokens the draft proposes per loop, and how people write several."""

from __future__ import annotations

import re

from spsbench.errors import UsageError

MAX_K = 64
"""Beyond this no pair gains anything, and a typing error is likelier than an intention."""

REMEDY = f"Write whole numbers from 0 to {MAX_K}: one (4), a list (0,2,4) or a range (0..7)."

_PART = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")


def parse_ks(text: str) -> tuple[int, ...]:
    """Read ``4``, ``0,2,4`` or ``0..7`` (ends included); the order stays, doubles go.

    Raises:
        UsageError: for anything else, naming ``--k``.
    """
    try:
        return split_ks(text)
    except ValueError as problem:
        raise UsageError(f"{problem}.", flag="--k", remedy=REMEDY) from None


def split_ks(text: str) -> tuple[int, ...]:
    """As ``parse_ks``, with a ValueError instead, for use inside validators."""
    ks: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a lookahead")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part.strip()!r} is an empty range")
        if last > MAX_K:
            raise ValueError(f"{last} is more than the largest lookahead, {MAX_K}")
        ks.extend(range(first, last + 1))
    return tuple(dict.fromkeys(ks))

"""Hostile programs, from ``attacks.txt``. Each defines ``attack()``.

Of the kind ``CLAIMS`` it returns ``"worked"`` if it got what it wanted. A ``GUESSES`` one tries to be
judged right without the answer, a word that it is not told; finding the word counts, too. ``SLOW`` ones
do not end. What else they did is for the scene to find out; ``SCENE`` holds its facts.
"""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent

PREAMBLE = (_HERE / "preamble.txt").read_text(encoding="utf-8")
"""What they all begin with."""


def _programs(kind: str) -> dict[str, str]:
    text = (_HERE / "attacks.txt").read_text(encoding="utf-8")
    parts = re.split(r"^#### (\w+): (.+)\n", text, flags=re.MULTILINE)[1:]
    return {name: body for found, name, body in zip(*[iter(parts)] * 3, strict=True) if found == kind}


CLAIMS, GUESSES, SLOW = (_programs(kind) for kind in ("CLAIMS", "GUESSES", "SLOW"))

"""Whether training text contains what drafts are later measured on.

Two texts overlap if they share 13 words in a row (the measure of Brown et al. 2020, appendix C).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WORDS = 13

_WORD = re.compile(r"\w+")


class Evaluated:
    """Every 13 words in a row of the evaluated texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs = {run for text in texts for run in _runs(text)}

    def __len__(self) -> int:
        return len(self._runs)

    def overlaps(self, text: str) -> bool:
        """Whether a text shares 13 words in a row with an evaluated one."""
        return any(run in self._runs for run in _runs(text))


def _runs(text: str) -> Iterator[int]:
    words = _WORD.findall(text.lower())
    for at in range(len(words) - WORDS + 1):
        yield hash(tuple(words[at : at + WORDS]))

"""Every sentence on its own line, which ROUGE-Lsum takes for one.

Highlights of CNN/DailyMail come so. A model that was trained on subwords without a line break writes its
sentences in one line. Where a text has no line break, one is put after every sentence: a full stop, question
or exclamation mark before white space and a digit or a letter that is not small, perhaps after opening
quotation marks or brackets; or a full stop that stands alone, as in the tokenized part of the data. An
abbreviation before a name is taken for an end, and a mark inside closing quotation marks is not: for all arms
alike.
"""

from __future__ import annotations

import re

_END = re.compile(r"""(?<=\s\.)\s+|(?<=[.!?])\s+(?=["'`“‘(]*([^\W_]))""")
"""A possible end of a sentence; the group is the letter or digit after it, where that decides."""


def sentence_per_line(text: str) -> str:
    """The text by sentences; as it is if it has several lines already."""
    stripped = text.strip()
    return stripped if "\n" in stripped else _END.sub(_broken, stripped)


def _broken(end: re.Match[str]) -> str:
    """A line break, or the white space as it is before a small letter."""
    return end[0] if end[1] is not None and end[1].islower() else "\n"

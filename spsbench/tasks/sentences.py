"""Every sentence on a line of its own, which ROUGE-Lsum takes for one.

Highlights of CNN/DailyMail come so. A model that was trained on subwords without a line break writes its
sentences in one line. Where a text has no line break, one is put behind every sentence: a full stop, question
or exclamation mark before a space and a capital, digit or quotation mark, or a full stop that stands alone,
as in the tokenized part of the data. An abbreviation before a name is taken for an end: for all arms alike.
"""

from __future__ import annotations

import re

_END = re.compile(r"""(?<=[.!?])\s+(?=["'`“‘(]*[^\W_a-z])|(?<=\s\.)\s+""")


def sentence_per_line(text: str) -> str:
    """The text by sentences; as it is if it has several lines already."""
    stripped = text.strip()
    return stripped if "\n" in stripped else _END.sub("\n", stripped)

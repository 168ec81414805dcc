"""The thought that a model writes before its answer, and the answer behind it.

A template may open the thought itself, so that the text holds its end alone. A thought without an end has no
answer behind it: whatever it says is not what the model says.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>"))
"""Begin and end as models write them: DeepSeek, Qwen, GLM and most; Mistral; Gemma 4."""

OPENS = tuple(begin for begin, _ in _MARKS)


class Spoken(NamedTuple):
    """A text in two parts; ``thought`` is None where there is none, ``answer`` empty before its beginning."""

    thought: str | None
    answer: str


def spoken(text: str, *, opened: bool = False) -> Spoken:
    """Part a text into thought and answer.

    Args:
        opened: the prompt ends within a thought, so that the text begins in one.
    """
    said = text.lstrip()
    for begin, end in _MARKS:
        head, ended, answer = said.partition(end)
        begun = head.startswith(begin)
        if ended and (begun or begin not in head):
            return Spoken(head.removeprefix(begin).strip(), answer.lstrip())
        if begun:
            return Spoken(said.removeprefix(begin).strip(), "")
    return Spoken(text.strip(), "") if opened else Spoken(None, text)


_OPENED = re.compile(rf"(?:{'|'.join(map(re.escape, OPENS))})\s*\Z")


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends where a thought begins."""
    return _OPENED.search(prompt) is not None

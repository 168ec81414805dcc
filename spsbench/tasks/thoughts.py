"""The thought that a model writes before its answer, and the answer behind it.

A template may open the thought itself, so that the text holds its end alone. A thought without an end has no
answer behind it: whatever it says is not what the model says. Marks in the middle of an answer are its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from spsbench.base.thoughts import HARMONY, THOUGHT_MARKS

_CHANNEL = re.compile(
    r"(?:<\|start\|>[^<]*)?<\|channel\|>(?P<name>\w+)(?:[^<]|<\|constrain\|>)*<\|message\|>"
)
_FINAL = "final"
_MESSAGE_END = re.compile(r"<\|(?:end|return|call)\|>")
"""Messages of OpenAI's harmony: the final channel alone is the answer. The marks of a message's end are often
those of an output, and not in its text."""

OPENS = tuple(each.begin for each in (*THOUGHT_MARKS, HARMONY))


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
    if (parted := _of_channels(said, opened=opened)) is not None:
        return parted
    for begin, end, _ in THOUGHT_MARKS:
        head, ended, answer = said.partition(end)
        begun = head.startswith(begin)
        if ended and (begun or begin not in head):
            thought, answer = head.removeprefix(begin).strip(), answer.lstrip()
            if not answer.startswith(begin):
                return Spoken(thought, answer)
            more = spoken(answer)
            return Spoken("\n".join(filter(None, (thought, more.thought))), more.answer)
        if begun:
            return Spoken(said.removeprefix(begin).strip(), "")
    return Spoken(text.strip(), "") if opened else Spoken(None, text)


def _of_channels(said: str, *, opened: bool) -> Spoken | None:
    """Part the messages of harmony; None for a text that has none."""
    begins = list(_CHANNEL.finditer(said))
    if not begins or (begins[0].start() and not opened):
        return None
    first = _MESSAGE_END.split(said[: begins[0].start()])[0]
    thoughts, answer = [first] if opened else [], ""
    for begin, end in zip(begins, [*(begin.start() for begin in begins[1:]), len(said)], strict=True):
        content = _MESSAGE_END.split(said[begin.end() : end])[0].strip()
        if begin["name"] == _FINAL:
            answer = content
        else:
            thoughts.append(content)
    return Spoken("\n".join(filter(None, thoughts)) if thoughts else None, answer)


_OPENED = re.compile(rf"(?:{'|'.join(map(re.escape, OPENS))})\s*\Z")


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends where a thought begins."""
    return _OPENED.search(prompt) is not None

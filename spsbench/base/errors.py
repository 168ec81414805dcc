"""Errors a user can meet, each with the exit code the command line promises.

SpsbenchError               1  failure while running
├── UsageError              2  unknown name or key, bad value, parts that do not fit
├── UnavailableError        3  data or model unavailable: offline, missing, gated, unreadable
├── GateFailed              4  a gate named in --fail-on, or `verify`, failed
└── IncompleteError         5  some samples failed or are missing
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

_SUBJECT = "it "
"""A message that begins so is about the value of its flag."""


class SpsbenchError(Exception):
    """A failure with a sentence for the user."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, flag: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.flag = flag
        self.remedy = remedy

    def __str__(self) -> str:
        # "--k: it must be above 0" reads better as "--k must be above 0".
        about = self.flag is not None and self.message.startswith(_SUBJECT)
        message = f" {self.message.removeprefix(_SUBJECT)}" if about else f": {self.message}"
        head = f"{self.flag}{message}" if self.flag else self.message
        return f"{head} {self.remedy}" if self.remedy else head


class UsageError(SpsbenchError):
    """The request cannot be carried out as asked; nothing was loaded."""

    exit_code: ClassVar[int] = 2


class UnavailableError(SpsbenchError):
    """Data or a model is unavailable: offline, missing, gated or unreadable."""

    exit_code: ClassVar[int] = 3


class GateFailed(SpsbenchError):
    """A gate that the user asked for did not pass."""

    exit_code: ClassVar[int] = 4


class IncompleteError(SpsbenchError):
    """The run ended with failed or missing samples."""

    exit_code: ClassVar[int] = 5


class RanksFault(SpsbenchError):
    """The processes are out of step, or one of them failed where all take part: none of them can go on."""


class DeviceFault(SpsbenchError):
    """A device failed under the program: whatever comes next on it fails, too."""


_LONGEST = 80


def as_typed(value: Any) -> str:
    """Write a value as one would type it, at most 80 long: a list as ``a,b``, None as ``nothing``."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {as_typed(each)}" for name, each in value.items()) or "an empty mapping"
    elif isinstance(value, (list, tuple)):
        text = ",".join(map(as_typed, value)) or "an empty list"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = "nothing" if value is None else str(value).strip() or "an empty text"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def printable(text: str) -> str:
    """Return the text without control and formatting characters, which could drive a terminal."""
    return "".join(" " if unicodedata.category(char).startswith("C") else char for char in text)


def first_line(error: BaseException, *, kind: bool = False) -> str:
    """Return the first line of an error's text that is not blank; its kind's name where there is none.

    Args:
        kind: whether the kind's name stands before the line, too.
    """
    name = type(error).__name__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not line:
        return name
    return f"{name}: {line}" if kind else line


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error itself, then its causes, the latest first."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

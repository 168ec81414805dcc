"""Errors a user can meet, each with the exit code the command line promises.

SpsbenchError               1  failure while running
├── UsageError              2  unknown name or key, bad value, parts that do not fit
├── UnavailableError        3  data or model not to be had: offline, missing, gated, unreadable
├── GateFailed              4  a gate named in --fail-on, or `verify`, failed
└── IncompleteError         5  some samples failed or are missing
"""

from __future__ import annotations

from typing import ClassVar


class SpsbenchError(Exception):
    """A failure with a sentence for the user.

    Args:
        message: what is wrong, naming the value, in one sentence.
        flag: the command-line flag or configuration key at fault, e.g. ``--k``.
        remedy: what to do about it, in one sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, flag: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.flag = flag
        self.remedy = remedy

    def __str__(self) -> str:
        head = f"{self.flag}: {self.message}" if self.flag else self.message
        return f"{head} {self.remedy}" if self.remedy else head


class UsageError(SpsbenchError):
    """The request cannot be carried out as asked; nothing was loaded."""

    exit_code: ClassVar[int] = 2


class UnavailableError(SpsbenchError):
    """Data or a model could not be had: offline, missing, gated or unreadable."""

    exit_code: ClassVar[int] = 3


class GateFailed(SpsbenchError):
    """A gate that the user asked for did not pass."""

    exit_code: ClassVar[int] = 4


class IncompleteError(SpsbenchError):
    """The run ended with failed or missing samples."""

    exit_code: ClassVar[int] = 5

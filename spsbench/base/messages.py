"""Messages: what a person is told beside numbers, be it a warning, a verdict, a cause or a note."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Message(ABC):
    """The facts of a sentence; the sentence is the message's text.

    A message is a frozen dataclass in the ``messages.py`` of its room or part. Code decides which message is
    true, and tests compare messages; their wording is edited in that file alone. An error is none: flag,
    value and remedy stand where it is raised.
    """

    @abstractmethod
    def __str__(self) -> str:
        """The sentence, as the screen and every report have it."""

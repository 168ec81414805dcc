"""What is told of files of prompts and data."""

from __future__ import annotations

from spsbench.base.messages import Message

SYNTHETIC_DATA = "synthetic data of the package"
LAST_ANSWER = "the answer at the end of messages"


class FileRead(Message):
    """By which fields a file is read: as data of a task, or as prompts."""

    path: str
    task: str | None
    fields: tuple[str, ...]

    def __str__(self) -> str:
        by = f" ({', '.join(self.fields)})" if self.fields else ""
        if self.task is not None:
            return f"Reading {self.path} as data of {self.task}{by}, like `{self.task} --data {self.path}`."
        each = ", one a line" if self.path.endswith(".txt") else ""
        return f"Reading {self.path} as prompts{by or each}."

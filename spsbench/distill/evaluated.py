"""The texts of the tasks that drafts are measured on, as far as they are on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spsbench.errors import SpsbenchError
from spsbench.tasks.catalogue import load_task

TASKS = ("humaneval", "docsum")
"""Tasks of real text that need no hub."""


def evaluated_texts(more: Iterable[str] = ()) -> Iterator[str]:
    """Problems and documents with their references."""
    for name in TASKS:
        try:
            yield from _texts(name)
        except SpsbenchError:  # its data is not here: then nothing was learnt from it on this machine either
            continue
    for name in more:
        yield from _texts(name)


def _texts(name: str) -> Iterator[str]:
    task = load_task(name)
    for example in task.load("official", None, 0).examples:
        fields = (value for value in example.fields.values() if isinstance(value, str))
        yield "\n".join((*fields, example.reference))

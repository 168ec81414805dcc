"""Turns: what a user says in a published conversation, each turn after the model's own answer to the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spsbench.base.records import Example, Prompt
from spsbench.tasks.conversation import Conversation
from spsbench.tasks.sources import DataRow, misfit
from spsbench.tasks.spec import columns_of
from spsbench.tasks.task import Frame, TaskData
from spsbench.tasks.text import TextTask

_IDS = ("prompt_id", "question_id")
_CATEGORY, _LATER = _BESIDE = ("category", "later turns")
"""Fields of an example beside the columns of its prompt."""


class TurnsTask(TextTask):
    """A column that holds a list of turns; nothing is scored.

    Where only the first turns are asked the others are counted as not asked.
    """

    has_turns = True

    def _rows(
        self, data: str, packages: tuple[str, ...] | None
    ) -> tuple[list[DataRow], list[DataRow] | None, dict[str, Any]]:
        rows, solved, origin = super()._rows(data, packages)
        (column,) = columns_of(self.spec.prompt)
        later = sum(len(_turns(row, column)) - 1 for row in rows)
        return [_by_turn(row, column) for row in rows], solved, {**origin, "unasked_turns": later}

    def _examples(self, rows: Sequence[DataRow], *, published: bool) -> list[Example]:
        """With their category, if any, and their later turns."""
        examples = super()._examples(rows, published=published)
        return [
            replace(example, fields=example.fields | {name: row.fields.get(name) for name in _BESIDE})
            for example, row in zip(examples, rows, strict=True)
        ]

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        category = example.fields[_CATEGORY]
        prompt = super()._prompt(example, data, frame)
        return prompt if category is None else replace(prompt, category=str(category))

    def conversation(self, example: Example, first: Prompt) -> Conversation | None:
        """See ``Task.conversation``; every turn is put as the first is."""
        (column,) = columns_of(self.spec.prompt)
        template = (self.spec.chat if first.chat else None) or self.spec.prompt
        later_texts = [template.format(**{column: turn}) for turn in example.fields[_LATER]]
        first_messages, *later = [[{"role": "user", "content": text}] for text in (first.text, *later_texts)]
        return Conversation(first_messages, later) if later else None


def _turns(row: DataRow, column: str) -> list[str]:
    turns = row.fields.get(column)
    if isinstance(turns, str):
        turns = [turns]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise misfit(f"{row.place}: column {column!r}", turns, "a list of turns")
    return turns


def _by_turn(row: DataRow, column: str) -> DataRow:
    """The first turn in the column and the others beside it, under the row's id."""
    ids = [row.fields[name] for name in _IDS if name in row.fields]
    known = {"id": ids[0]} if ids else {}
    first, *later = _turns(row, column)
    return DataRow(row.place, {**known, **row.fields, column: first, _LATER: later})

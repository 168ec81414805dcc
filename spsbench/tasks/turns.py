"""Turns: what a user says in a published conversation, of which the first turn is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spsbench.base.records import Example, Prompt
from spsbench.tasks.sources import DataRow, bad_data
from spsbench.tasks.spec import columns_of
from spsbench.tasks.task import Frame, TaskData
from spsbench.tasks.text import TextTask

_IDS = ("prompt_id", "question_id")


class TurnsTask(TextTask):
    """A column that holds a list of turns; nothing is scored.

    The later turns are left out and counted, as those of a prompts file without answers: what was said before
    them would be another text for each arm, and there would be nothing to pair.
    """

    def _rows(
        self, data: str, packages: tuple[str, ...] | None
    ) -> tuple[list[DataRow], list[DataRow] | None, dict[str, Any]]:
        rows, solved, origin = super()._rows(data, packages)
        (column,) = columns_of(self.spec.prompt)
        later = sum(len(_turns(row, column)) - 1 for row in rows)
        return [_first(row, column) for row in rows], solved, {**origin, "later_turns": later}

    def _examples(self, rows: Sequence[DataRow], *, published: bool) -> list[Example]:
        """The category of a row, where it has one, goes with the example."""
        found = super()._examples(rows, published=published)
        return [
            replace(example, fields={**example.fields, "category": row.fields.get("category")})
            for example, row in zip(found, rows, strict=True)
        ]

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        category = example.fields["category"]
        prompt = super()._prompt(example, data, frame)
        return prompt if category is None else replace(prompt, category=str(category))


def _turns(row: DataRow, column: str) -> list[str]:
    turns = row.fields.get(column)
    if isinstance(turns, str):
        turns = [turns]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise bad_data(
            f"{row.place}: column {column!r} holds {turns!r:.60} instead of a list of turns.",
            "Correct the row.",
        )
    return turns


def _first(row: DataRow, column: str) -> DataRow:
    """The row with its first turn alone, under the id that it has."""
    ids = [row.fields[name] for name in _IDS if name in row.fields]
    known = {"id": ids[0]} if ids else {}
    return DataRow(row.place, {**known, **row.fields, column: _turns(row, column)[0]})

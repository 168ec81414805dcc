"""Rows of a data file, each knowing its place, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spsbench.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Row:
    """One record with its place, e.g. ``line 3 of news.jsonl``, for error messages."""

    place: str
    fields: Mapping[str, Any]


def bad_data(message: str, remedy: str) -> UnavailableError:
    """The error for data that cannot be used."""
    return UnavailableError(message, flag="--data", remedy=remedy)


def column(row: Row, *names: str) -> str:
    """The text in the first of the columns ``names`` that the row has; numbers become text.

    Raises:
        UnavailableError: no such column, or no text in it. It names the place and the column.
    """
    present = [name for name in names if name in row.fields]
    if not present:
        wanted = " or ".join(repr(name) for name in names)
        known = ", ".join(row.fields) or "none"
        raise bad_data(
            f"{row.place} has no column {wanted} (its columns: {known}).", "Add or rename the column."
        )
    value = row.fields[present[0]]
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise bad_data(
            f"{row.place}: column {present[0]!r} holds {value!r:.60} in place of text.", "Correct the row."
        )
    if not text.strip():
        raise bad_data(f"{row.place}: column {present[0]!r} is empty.", "Fill it in or remove the row.")
    return text


def unique(ids: Iterable[tuple[str, Row]]) -> None:
    """Refuse two rows with one id: samples are kept, resumed and paired by it.

    Raises:
        UnavailableError: naming both places.
    """
    seen: dict[str, Row] = {}
    for example_id, row in ids:
        if example_id in seen:
            raise bad_data(
                f"{row.place} repeats the id {example_id!r} of {seen[example_id].place}.",
                "Give every row an id of its own.",
            )
        seen[example_id] = row

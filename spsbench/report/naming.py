"""What tables call their arms: by the label that sentences call them by, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spsbench.axes import AnyRow, label
from spsbench.axes import Row as Arm
from spsbench.report.tables import SCREEN_WIDTH, Cell, Column, Heading, Row, Table, left

ROOM = SCREEN_WIDTH - 2
"""Columns for a table, with a space on either side."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The first cells of the rows about arms, and the groups that the rows are in."""

    columns: tuple[Column, ...]
    cells: Callable[[Arm], list[str]]
    group: Callable[[Arm], str]
    titled: bool = False
    common: str = ""

    def table(
        self, columns: Sequence[Column], arms: Sequence[AnyRow], cells: Callable[[AnyRow], Sequence[Cell]]
    ) -> Table:
        """A table with a row per arm."""
        rows: list[Row | Heading] = []
        previous: str | None = None
        for arm in arms:
            group = self.group(arm)
            if group != previous and (rows or self.titled):
                rows.append(Heading(group if self.titled else ""))
            previous = group
            rows.append([*self.cells(arm), *cells(arm)])
        return Table([*self.columns, *columns], rows, names=len(self.columns))


def in_full(*, sampling: bool = True) -> Naming:
    """Every arm by its label and, unless it is left out, its sampling."""

    def cells(arm: Arm) -> list[str]:
        return [label(arm), arm["sampling"]] if sampling else [label(arm)]

    columns = (left("arm"), left("sampling")) if sampling else (left("arm"),)
    return Naming(columns, cells, lambda arm: str(arm["sampling"]))


def by_label(arms: Sequence[Arm]) -> Naming:
    """Every arm by its label, which sentences call it by, under its sampling where there are several."""
    samplings = {str(arm["sampling"]) for arm in arms}
    return Naming(
        (left("arm"),),
        lambda arm: [label(arm)],
        lambda arm: str(arm["sampling"]),
        titled=len(samplings) > 1,
        common="" if len(samplings) > 1 else samplings.pop(),
    )


def fitting(
    arms: Sequence[Arm], make: Callable[[Naming], Table], whole: Naming, room: int = ROOM
) -> tuple[Table, Naming]:
    """The table under ``whole`` names if it fits into ``room`` columns, else with one column for names.

    Names are broken over lines if need be. Where that does not fit either, the table is written row by row.
    """
    table, shorter = make(whole), by_label(arms)
    if table.width() > room and (folded := make(shorter)).least_width() <= room:
        return folded, shorter
    return table, whole

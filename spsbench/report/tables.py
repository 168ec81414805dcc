"""A table as a value, built once, drawn on a terminal and written as Markdown; what it calls its arms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spsbench.axes import AnyRow, label
from spsbench.axes import Row as Arm
from spsbench.report.wording import escape, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.table import Table as RichTable
    from rich.text import Text


SCREEN_WIDTH = 80
"""Columns of a terminal that says nothing of its width."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``left`` and ``right`` make one.

    Attributes:
        note: shown in brackets after the title, e.g. ``95%`` of an interval.
    """

    title: str = ""
    note: str = ""
    numeric: bool = False
    whole: bool = False
    code: bool = False

    @property
    def heading(self) -> str:
        """The title with its note."""
        return f"{self.title} [{self.note}]" if self.note else self.title


def left(title: str = "", *, note: str = "", whole: bool = False) -> Column:
    """A column of words, which may be broken over several lines unless they are to stay ``whole``."""
    return Column(title, note, whole=whole)


def right(title: str, *, note: str = "", code: bool = False) -> Column:
    """A column of numbers."""
    return Column(title, note, numeric=True, whole=True, code=code)


@dataclass(frozen=True, slots=True)
class Styled:
    """A cell with a style of rich's, for terminals; the text must say the same without it."""

    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Heading:
    """Stands between rows and begins a group of them; without a title it is a gap."""

    title: str = ""


Cell: TypeAlias = str | Styled
Row: TypeAlias = Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text. The text is untrusted: each renderer makes it harmless.

    A newline in a cell is kept on a terminal and is a space in Markdown.
    """

    columns: Sequence[Column]
    rows: Sequence[Row | Heading]
    names: int = 1

    def __post_init__(self) -> None:
        for row in self.rows:
            if not isinstance(row, Heading) and len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells in a table of {len(self.columns)} columns: {row}")

    def as_markdown(self) -> list[str]:
        """Lines of a GitHub table; titles and cells are escaped."""
        titles = [_markdown_title(column) for column in self.columns]
        rules = ["--:" if column.numeric else ":--" for column in self.columns]
        lines = [titles, rules, *self._markdown_rows()]
        return ["| " + " | ".join(cells) + " |" for cells in lines]

    def _markdown_rows(self) -> Iterator[list[str]]:
        for row in self.rows:
            if not isinstance(row, Heading):
                yield [escape(_plain(cell)) for cell in row]
            elif row.title:
                yield [escape(row.title), *[""] * (len(self.columns) - 1)]

    def as_rich(self, *, gap: int = 2) -> RenderableType:
        """The table for a terminal, with ``gap`` spaces between columns.

        Where the terminal is too narrow for it, every row is a paragraph, with a line for each cell.
        """
        return _Fitting(self, gap)

    def drawn(self, room: int, gap: int) -> RenderableType:
        """The table in so many columns of a terminal."""
        return self._columns(gap, room) if self.least_width(gap=gap) <= room else self._stacked()

    def _columns(self, gap: int, room: int) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        if not any(isinstance(row, Heading) and row.title for row in self.rows):
            return self._grid(self.rows, gap)
        # A title is as wide as it likes, so it stands outside of the grids, which share their widths.
        widths = self._widths()
        for place, column in enumerate(self.columns):
            excess = sum(widths) + gap * (len(widths) - 1) - room
            if not column.whole:  # broken over lines as far as need be
                widths[place] -= max(0, min(excess, widths[place] - self._longest_word(place)))
        parts: list[RenderableType] = [self._grid([], gap, widths)]
        for title, rows in _groups(self.rows):
            parts += [Text()] if len(parts) > 1 else []
            parts += [Text(printable(title))] if title else []
            parts.append(self._grid(rows, gap, widths, head=False))
        return Group(*parts)

    def _stacked(self) -> RenderableType:
        """Every row as a paragraph: its name, then a line for each cell."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        parts: list[RenderableType] = []
        for row in self.rows:
            if isinstance(row, Heading):
                parts += [Text(), Text(printable(row.title))] if row.title else []
                continue
            names = [text for cell in row[: self.names] if (text := _plain(cell))]
            parts.append(Text(printable(", ".join(names))))
            titles = [left(), left(whole=True)]
            cells: list[Row] = [
                [Styled(column.heading, "dim"), cell]
                for column, cell in zip(self.columns[self.names :], row[self.names :], strict=True)
                if _plain(cell)
            ]
            parts.append(Padding(Table(titles, cells)._grid(cells, 2), (0, 0, 0, 2)))
        return Group(*parts)

    def least_width(self, *, gap: int = 2) -> int:
        """Columns of a terminal that the table takes where what may be broken is broken at its spaces."""
        least = [
            width if column.whole else self._longest_word(place)
            for place, (column, width) in enumerate(zip(self.columns, self._widths(), strict=True))
        ]
        return sum(least) + gap * (len(self.columns) - 1)

    def _longest_word(self, place: int) -> int:
        from rich.cells import cell_len

        cells = [_plain(row[place]) for row in self.rows if not isinstance(row, Heading)]
        return max(map(cell_len, " ".join([self.columns[place].heading, *cells]).split()), default=0)

    def width(self, *, gap: int = 2) -> int:
        """Cells of a terminal that the table takes where nothing is broken over lines."""
        return sum(self._widths()) + gap * (len(self.columns) - 1)

    def _widths(self) -> list[int]:
        from rich.cells import cell_len

        rows = [row for row in self.rows if not isinstance(row, Heading)]
        return [
            max(
                cell_len(line)
                for text in (column.heading, *(_plain(row[place]) for row in rows))
                for line in text.split("\n")
            )
            for place, column in enumerate(self.columns)
        ]

    def _grid(
        self, rows: Sequence[Row | Heading], gap: int, widths: Sequence[int] | None = None, head: bool = True
    ) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        head = head and any(column.title for column in self.columns)
        # This box draws a space between columns, the padding is the rest of the gap.
        grid = RichTable(
            box=box.SIMPLE_HEAD,
            show_header=head,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),
            header_style="not bold dim",
        )
        for place, column in enumerate(self.columns):
            grid.add_column(
                Text(printable(column.heading)),
                justify="right" if column.numeric else "left",
                no_wrap=column.whole,
                overflow="ellipsis" if column.whole else "fold",
                width=widths[place] if widths else None,
            )
        for row in rows:
            if isinstance(row, Heading):
                grid.add_section()
            else:
                grid.add_row(*map(_text, row))
        return grid


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table that is drawn as the terminal's width allows."""

    table: Table
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.table.drawn(options.max_width, self.gap)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement.get(console, options, self.table.drawn(options.max_width, self.gap))


def _groups(rows: Sequence[Row | Heading]) -> list[tuple[str, list[Row]]]:
    """The rows by the title above them; rows before the first heading have none."""
    groups: list[tuple[str, list[Row]]] = [("", [])]
    for row in rows:
        if isinstance(row, Heading):
            groups.append((row.title, []))
        else:
            groups[-1][1].append(row)
    return [(title, own) for title, own in groups if own]


def _plain(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def _text(cell: Cell) -> Text:
    from rich.text import Text

    shown = "\n".join(printable(line) for line in _plain(cell).split("\n"))
    return Text(shown, style=cell.style if isinstance(cell, Styled) else "")


def _markdown_title(column: Column) -> str:
    title = f"`{column.title}`" if column.code else escape(column.title)
    return f"{title} [{column.note}]" if column.note else title


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

"""A table as a value, its columns declared once, for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from spsbench.base.axes import Row as Arm
from spsbench.base.axes import label
from spsbench.report.wording import escape, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


SCREEN_WIDTH = 80
"""Columns of a terminal that says nothing of its width."""


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
class Column:
    """A column, declared once for every renderer; ``left`` and ``right`` make one.

    Attributes:
        cell: what the column says of a row, for ``table_of``.
        note: shown in brackets after the title, e.g. ``95%`` of an interval.
        latex: the title in LaTeX, where it is another.
    """

    title: str
    cell: Callable[[Any], Cell]
    note: str = ""
    numeric: bool = False
    whole: bool = False
    code: bool = False
    latex: str = ""

    @property
    def heading(self) -> str:
        return f"{self.title} [{self.note}]" if self.note else self.title


def left(title: str = "", cell: Callable[[Any], Cell] = str, **more: Any) -> Column:
    """Return a column of words, which may be broken over several lines unless they are to stay ``whole``."""
    return Column(title, cell, **more)


def right(title: str, cell: Callable[[Any], Cell] = str, **more: Any) -> Column:
    return Column(title, cell, numeric=True, whole=True, **more)


def entry(name: str, show: Callable[..., Cell] = str, *more: Any) -> Callable[[Any], Cell]:
    """Return a cell that shows one entry of its row: ``entry("c", number, 3)``."""
    return lambda row: show(row[name], *more)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text. The text is untrusted: each renderer makes it harmless.

    A newline in a cell is kept on a terminal and is a space in Markdown. On a terminal that is too narrow,
    every row is a paragraph, with a line for each cell.
    """

    columns: Sequence[Column]
    rows: Sequence[Row | Heading]
    names: int = 1
    gap: int = 2

    def __post_init__(self) -> None:
        for row in self.rows:
            if not isinstance(row, Heading) and len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells in a table of {len(self.columns)} columns: {row}")

    def as_markdown(self) -> list[str]:
        """Return the lines of a GitHub table; titles and cells are escaped."""
        titles = [f"`{each.title}`" if each.code else escape(each.title) for each in self.columns]
        notes = [f" [{column.note}]" if column.note else "" for column in self.columns]
        lines = [
            [title + note for title, note in zip(titles, notes, strict=True)],
            ["--:" if column.numeric else ":--" for column in self.columns],
        ]
        for row in self.rows:
            if not isinstance(row, Heading):
                lines.append([escape(plain(cell)) for cell in row])
            elif row.title:
                lines.append([escape(row.title), *[""] * (len(self.columns) - 1)])
        return ["| " + " | ".join(cells) + " |" for cells in lines]

    def as_rich(self, *, gap: int = 2) -> Table:
        """The table for a terminal, with ``gap`` spaces between columns."""
        return replace(self, gap=gap)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._drawn(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._drawn(options.max_width))

    def _drawn(self, room: int) -> RenderableType:
        if self.least_width() > room:
            return self._stacked()
        if not any(isinstance(row, Heading) and row.title for row in self.rows):
            return self._grid(self.rows)
        # A title is as wide as it likes, so it stands outside of the grids, which share their widths.
        widths = self._widths()
        for place, column in enumerate(self.columns):
            excess = sum(widths) + self.gap * (len(widths) - 1) - room
            if not column.whole:  # broken over lines as far as need be
                widths[place] -= max(0, min(excess, widths[place] - self._longest_word(place)))
        parts: list[RenderableType] = [self._grid([], widths)]
        title, group = "", list[Row]()
        for row in [*self.rows, Heading()]:
            if not isinstance(row, Heading):
                group.append(row)
                continue
            if group:
                parts += [Text()] if len(parts) > 1 else []
                parts += [Text(printable(title))] if title else []
                parts.append(self._grid(group, widths, head=False))
            title, group = row.title, []
        return Group(*parts)

    def _stacked(self) -> RenderableType:
        """Every row as a paragraph: its name, then a line for each cell."""
        parts: list[RenderableType] = []
        for row in self.rows:
            if isinstance(row, Heading):
                parts += [Text(), Text(printable(row.title))] if row.title else []
                continue
            parts.append(Text(printable(", ".join(filter(None, map(plain, row[: self.names]))))))
            cells: list[Row] = [
                [Styled(column.heading, "dim"), cell]
                for column, cell in zip(self.columns[self.names :], row[self.names :], strict=True)
                if plain(cell)
            ]
            parts.append(Padding(Table([left(), left()], cells)._grid(cells), (0, 0, 0, 2)))
        return Group(*parts)

    def least_width(self) -> int:
        """Return the table's width in a terminal if breakable words are broken at their spaces."""
        least = [
            width if column.whole else self._longest_word(place)
            for place, (column, width) in enumerate(zip(self.columns, self._widths(), strict=True))
        ]
        return sum(least) + self.gap * (len(self.columns) - 1)

    def width(self) -> int:
        """Return the table's width in a terminal if nothing is broken over lines."""
        return sum(self._widths()) + self.gap * (len(self.columns) - 1)

    def _longest_word(self, place: int) -> int:
        return max(map(cell_len, " ".join(self._texts(place)).split()), default=0)

    def _widths(self) -> list[int]:
        texts = map(self._texts, range(len(self.columns)))
        return [max(cell_len(line) for text in row for line in text.split("\n")) for row in texts]

    def _texts(self, place: int) -> list[str]:
        cells = [plain(row[place]) for row in self.rows if not isinstance(row, Heading)]
        return [self.columns[place].heading, *cells]

    def _grid(
        self, rows: Sequence[Row | Heading], widths: Sequence[int] | None = None, head: bool = True
    ) -> RichTable:
        # This box draws a space between columns, the padding is the rest of the gap.
        grid = RichTable(
            box=box.SIMPLE_HEAD,
            show_header=head and any(column.title for column in self.columns),
            show_edge=False,
            pad_edge=False,
            padding=(0, self.gap - 1, 0, 0),
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


def plain(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def _text(cell: Cell) -> Text:
    shown = "\n".join(map(printable, plain(cell).split("\n")))
    return Text(shown, style=cell.style if isinstance(cell, Styled) else "")


def table_of(columns: Sequence[Column], rows: Iterable[Any], names: int = 1) -> Table:
    """Return a table of the columns over the rows; a heading among the rows stays a heading."""
    cells = [row if isinstance(row, Heading) else [column.cell(row) for column in columns] for row in rows]
    return Table(columns, cells, names)


def paragraphs(*parts: str | Table | Sequence[str]) -> list[str]:
    """Return lines of Markdown with an empty one between the parts; parts that are empty are left out."""
    lines: list[str] = []
    for part in parts:
        lines_of_part = (
            part.as_markdown() if isinstance(part, Table) else [part] if isinstance(part, str) else part
        )
        lines += [*([""] if lines else []), *lines_of_part] if any(lines_of_part) else []
    return lines


def bullets(texts: Iterable[str]) -> list[str]:
    """A list of Markdown; the texts are escaped."""
    return [f"* {escape(text)}" for text in texts]


ARM, SAMPLING = left("arm", label), left("sampling", entry("sampling"))


@dataclass(frozen=True, slots=True)
class Naming:
    """The first columns of the rows about arms: label and sampling, or samplings as titles of groups."""

    columns: tuple[Column, ...] = (ARM, SAMPLING)
    titled: bool = False
    common: str = ""

    def table(self, columns: Sequence[Column], arms: Sequence[Arm | Heading]) -> Table:
        """A table with a row per arm, under the headings that stand among the arms."""
        rows: list[Arm | Heading] = []
        above, previous = "", None
        for arm in arms:
            if isinstance(arm, Heading):
                above, previous = arm.title, None
                rows += [] if self.titled else [arm]
                continue
            if arm["sampling"] != previous and self.titled:
                rows.append(Heading(", ".join(filter(None, (above, str(arm["sampling"]))))))
            elif arm["sampling"] != previous and rows and not above:
                rows.append(Heading())
            previous = arm["sampling"]
            rows.append(arm)
        return table_of([*self.columns, *columns], rows, len(self.columns))


IN_FULL = Naming()


def fitting(
    arms: Sequence[Arm | Heading], columns: Sequence[Column], room: int, whole: Naming = IN_FULL
) -> tuple[Table, Naming]:
    """The table under ``whole`` names if it fits into ``room`` columns, else with one column for names.

    That has every arm by its label, which sentences call it by, under its sampling where there are several.
    Names are broken over lines if need be. Where that does not fit either, the table is written row by row.
    """
    samplings = sorted({str(arm["sampling"]) for arm in arms if not isinstance(arm, Heading)})
    shorter = Naming((ARM,), len(samplings) > 1, "" if len(samplings) > 1 else samplings[0])
    table = whole.table(columns, arms)
    if table.width() > room and (folded := shorter.table(columns, arms)).least_width() <= room:
        return folded, shorter
    return table, whole

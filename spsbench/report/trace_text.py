"""The token trace on a terminal: coloured where there is colour, marked where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.cells import cell_len, get_character_cell_size

from spsbench.report.trace import LEGEND, Token

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "accepted": "green",
    "rejected": "red strike",
    "correction": "blue underline",
    "bonus": "bold magenta",
    "ars": "",
}
_MARKS = {"rejected": ("[-", "-]"), "correction": ("[+", "+]"), "bonus": ("[*", "*]")}


class TraceWriter:
    """Writes tokens as they come, breaking lines between them at the console's width.

    Args:
        console: of the results. Without colours fates are marked: ``[-rejected-]``,
            ``[+correction+]``, ``[*bonus*]``.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = console.color_system is None or console.no_color
        self._column = 0

    def legend(self) -> None:
        """One line that says what the colours or marks mean."""
        for place, fate in enumerate(LEGEND):
            if place:
                self._write("  ", "ars")
            self._write(_bracketed(fate, fate) if self._plain else fate, fate)
        self.end()

    def write(self, tokens: Iterable[Token]) -> None:
        """Append tokens; their texts must be those of ``visible``."""
        for token in tokens:
            text = _bracketed(token.text, token.fate) if self._plain else token.text
            self._write(text, token.fate)

    def end(self) -> None:
        """End the line that is being written, if there is one."""
        if self._column:
            self._console.print()
        self._column = 0

    def _write(self, text: str, fate: str) -> None:
        first, *rest = text.split("\n")
        self._piece(first, fate)
        for line in rest:
            self._console.print()
            self._column = 0
            self._piece(line, fate)

    def _piece(self, text: str, fate: str) -> None:
        """Text without a newline: on this line if it fits, else on the next, else in parts."""
        from rich.text import Text

        width = self._console.width
        if self._column and self._column + cell_len(text) > width:
            self._console.print()
            self._column = 0
        for part in _parts(text, width):
            if self._column + cell_len(part) > width:
                self._console.print()
                self._column = 0
            self._console.print(Text(part, style=_STYLES[fate]), end="", soft_wrap=True)
            self._column += cell_len(part)


def _bracketed(text: str, fate: str) -> str:
    """The text between its marks; a newline at its end stays behind them."""
    opening, closing = _MARKS.get(fate, ("", ""))
    body = text.rstrip("\n")
    return f"{opening}{body}{closing}{text[len(body) :]}"


def _parts(text: str, width: int) -> Iterable[str]:
    """The text in pieces no wider than ``width`` cells."""
    piece, used = "", 0
    for character in text:
        size = get_character_cell_size(character)
        if used + size > width:
            yield piece
            piece, used = "", 0
        piece, used = piece + character, used + size
    if piece:
        yield piece

"""The token trace: who wrote what, and why it was kept (after the picture in Leviathan et al. 2022).

A model of it that pages and terminals draw alike. Token texts come from models and data: nobody
vouches for them, so control characters are made visible here, once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, get_character_cell_size

from spsbench.base.axes import series
from spsbench.report.measured import Measured
from spsbench.report.messages.runs import FATES
from spsbench.report.wording import full_name
from spsbench.store.summary_types import ArmRow

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Token:
    """One drafted or emitted token.

    Attributes:
        text: as it may be shown, see ``visible``.
        fate: one of ``FATES``, or ``ars``.
        target_prob, draft_prob, u: see ``TracedToken``.
        sibling: of an accepted token of a tree, which one of its place it was, from 1.
    """

    text: str
    fate: str
    target_prob: float
    draft_prob: float | None
    u: float
    sibling: int | None = None


@dataclass(frozen=True, slots=True)
class TracedLoop:
    """The tokens of one loop and how long it took (None where the engine could not tell)."""

    index: int
    ms: float | None
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One sequence, loop by loop."""

    example_id: str
    arm: str
    title: str
    loops: tuple[TracedLoop, ...]

    @property
    def emitted(self) -> int:
        return sum(token.fate != "rejected" for loop in self.loops for token in loop.tokens)


def visible(text: str) -> str:
    """Return the text with every control and formatting character replaced by a harmless sign.

    A newline stays, after its sign: outputs are read line by line.
    """
    return "".join(_harmless_sign(character) for character in text)


def _harmless_sign(character: str) -> str:
    if character == "\n":
        return "\u21b5\n"
    if unicodedata.category(character).startswith("C"):
        code = ord(character)
        return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
    return "\u21b5\n" if character in "\u2028\u2029" else character


def shown_text(token_id: int, texts: Mapping[str, str]) -> str:
    """Return the token's text; its number where the text is empty (EOS) or was not kept."""
    text = texts.get(str(token_id)) or ""
    return visible(text) if text else f"\u27e8{token_id}\u27e9"


def traces(measured: Measured) -> tuple[Trace, ...]:
    """Return the traced sequences of the fastest SpS arm of each sampling (of ArS where there is no other).

    The remaining arms of a sweep would show the same texts many times over; they stay in the run's
    ``tokens.parquet``.
    """
    tokens = measured.tokens
    if not len(tokens):
        return ()
    texts = measured.run.get("token_texts") or {}
    traced = set(tokens["arm"])
    rows = [row for row in measured.summary["rows"] if row["arm"] in traced]

    def rank(row: ArmRow) -> tuple[bool, float]:
        return row["method"] == "sps", row["speedup"]["ratio"] if row["speedup"] else 0.0

    best = [max(group, key=rank) for group in series(rows)]
    sequences = []
    for row in (row for row in rows if row in best):
        known = _loops_by_sequence(measured, row["arm"])
        arm_tokens = tokens[tokens["arm"] == row["arm"]]
        for key, part in arm_tokens.groupby(["example_id", "sample_index"], sort=False):
            parts: dict[int, list[Token]] = {}
            ms, siblings = known.get(key, ({}, {}))
            for loop, token_id, fate, target, draft, u in part[_COLUMNS].itertuples(index=False):
                own_siblings = siblings.get(int(loop), [])
                sibling = 1 + own_siblings.pop(0) if fate == "accepted" and own_siblings else None
                shown = None if draft != draft else draft
                token = Token(shown_text(token_id, texts), fate, target, shown, u, sibling)
                parts.setdefault(int(loop), []).append(token)
            loops = tuple(TracedLoop(index, ms.get(index), tuple(every)) for index, every in parts.items())
            sequences.append(Trace(visible(str(key[0])), row["arm"], full_name(row), loops))
    order = {visible(str(example)): place for place, example in enumerate(tokens["example_id"].unique())}
    return tuple(sorted(sequences, key=lambda trace: order[trace.example_id]))


_COLUMNS = ["loop", "token_id", "fate", "target_prob", "draft_prob", "u"]


def _loops_by_sequence(
    measured: Measured, arm: str
) -> dict[Any, tuple[dict[int, float | None], dict[int, list[int]]]]:
    """By (example_id, sample_index) the milliseconds of each traced loop, and of a tree its siblings.

    For a tree, also return which siblings stood in each loop.
    """
    loops = measured.loops_by_arm.get(arm)
    if loops is None:
        return {}
    part = loops[loops["example_id"].isin(set(measured.tokens["example_id"]))]
    by_sequence = {}
    for key, loop_rows in part.groupby(["example_id", "sample_index"], sort=False):
        ms = {
            loop: None if second != second else 1e3 * second
            for loop, second in enumerate(loop_rows["loop_s"])
        }
        siblings = loop_rows["siblings"].fillna("") if "siblings" in loop_rows else ()
        by_sequence[key] = (
            ms,
            {loop: [*map(int, text.split(","))] for loop, text in enumerate(siblings) if text},
        )
    return by_sequence


_STYLES = {
    "accepted": "green",
    "rejected": "red strike",
    "correction": "blue underline",
    "bonus": "bold magenta",
    "ars": "",
}
_MARKS = {"rejected": ("[-", "-]"), "correction": ("[+", "+]"), "bonus": ("[*", "*]")}


class TraceWriter:
    """Writes tokens as they come, breaking lines between them at the width of the console of results. Without
    colours fates are marked: ``[-rejected-]``, ``[+correction+]``, ``[*bonus*]``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = console.color_system is None or console.no_color
        self._column = 0

    def legend(self) -> None:
        """One line that says what the colours or marks mean."""
        for place, fate in enumerate(FATES):
            if place:
                self._write("  ", "ars")
            self._write(self._marked(fate, fate), fate)
        self.end()

    def write(self, tokens: Iterable[Token]) -> None:
        """Append tokens; their texts must be those of ``visible``."""
        for token in tokens:
            self._write(self._marked(token.text, token.fate), token.fate)

    def end(self) -> None:
        """End the line that is being written, if there is one."""
        if self._column:
            self._console.print()
        self._column = 0

    def _marked(self, text: str, fate: str) -> str:
        """Without colours the text between its marks; a newline at its end comes after them."""
        opening, closing = _MARKS.get(fate, ("", "")) if self._plain else ("", "")
        body = text.rstrip("\n")
        return f"{opening}{body}{closing}{text[len(body) :]}"

    def _write(self, text: str, fate: str) -> None:
        """Write each line of the text on this line if it fits, else on the next, else in parts."""
        from rich.text import Text

        width = self._console.width
        for number, line in enumerate(text.split("\n")):
            if number:
                self._console.print()
                self._column = 0
            if self._column + cell_len(line) > width:
                self.end()
            for part in _cut_to_width(line, width):
                if self._column + cell_len(part) > width:
                    self.end()
                self._console.print(Text(part, style=_STYLES[fate]), end="", soft_wrap=True)
                self._column += cell_len(part)


def _cut_to_width(text: str, width: int) -> Iterable[str]:
    """Cut the text into parts of at most ``width`` cells of a terminal."""
    piece, used = "", 0
    for character in text:
        size = get_character_cell_size(character)
        if used + size > width:
            yield piece
            piece, used = "", 0
        piece, used = piece + character, used + size
    if piece:
        yield piece

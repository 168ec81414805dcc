"""Server-sent events: what a stream of bytes says, as it arrives.

The format is the HTML standard's (section 9.2.6): lines end with LF, CR or CRLF, an empty line dispatches
an event, its ``data`` lines are joined by LF. An event without data says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spsbench.base import protocol

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event; its kind is ``message`` unless the stream names another."""

    data: bytes
    kind: str = MESSAGE


def events(pieces: Iterable[bytes], most_bytes: int) -> Iterator[StreamEvent]:
    """The events in a stream of pieces, each as soon as the line behind it ends.

    What stands at the end without an empty line behind it is an event too: some servers close behind
    ``data: [DONE]``.

    Args:
        most_bytes: of a line, and of an event's data.

    Raises:
        ProtocolError: one of them is longer.
    """
    data: list[bytes] = []
    kind, held = MESSAGE, 0
    for line in _lines(pieces, most_bytes):
        if not line:
            if data:
                yield StreamEvent(b"\n".join(data), kind)
            data, kind, held = [], MESSAGE, 0
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
            held += len(value)
            _require_short(held, most_bytes)
        elif field == b"event":
            kind = value.decode(errors="replace") or MESSAGE
    if data:
        yield StreamEvent(b"\n".join(data), kind)


def _lines(pieces: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    """Without their ends; the LF of a CRLF may come in the next piece."""
    unfinished: list[bytes] = []
    length, after_cr, is_first = 0, False, True
    for piece in pieces:
        rest = piece.removeprefix(b"\n") if after_cr else piece
        after_cr = piece.endswith(b"\r") if piece else after_cr
        for place, part in enumerate(_LINE_END.split(rest)):
            if place:
                line = b"".join(unfinished)
                yield line.removeprefix(_BOM) if is_first else line
                unfinished, length, is_first = [], 0, False
            unfinished.append(part)
            length += len(part)
        _require_short(length, most_bytes)
    if last := b"".join(unfinished):
        yield last.removeprefix(_BOM) if is_first else last


def _require_short(length: int, most_bytes: int) -> None:
    if length > most_bytes:
        raise protocol.ProtocolError(f"a line of more than {most_bytes >> 20} MB")

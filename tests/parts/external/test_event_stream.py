"""A stream of bytes means what the format says, however it is cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.protocol import ProtocolError
from spsbench.parts.external.event_stream import StreamEvent, events

MOST = 1000


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"data: a", b""], [StreamEvent(b"a")]),
        ([b"data:a", b""], [StreamEvent(b"a")]),
        ([b"data:  a", b""], [StreamEvent(b" a")]),
        ([b"data: a", b"data: b", b""], [StreamEvent(b"a\nb")]),
        ([b"data", b""], [StreamEvent(b"")]),
        ([b": ping", b"", b"data: a", b""], [StreamEvent(b"a")]),
        (
            [b"event: error", b"data: a", b"", b"data: b", b""],
            [StreamEvent(b"a", "error"), StreamEvent(b"b")],
        ),
        ([b"event: error", b"", b"data: b", b""], [StreamEvent(b"b")]),
        ([b"id: 3", b"retry: 10", b"unknown: x", b"data: a", b""], [StreamEvent(b"a")]),
        ([b"\xef\xbb\xbfdata: a", b""], [StreamEvent(b"a")]),
        ([b"data: a"], [StreamEvent(b"a")]),
        ([b"", b""], []),
    ],
)
def test_lines_mean_events(end: bytes, lines: list[bytes], expected: list[StreamEvent]) -> None:
    stream = b"".join(line + end for line in lines)
    assert list(events([stream], MOST)) == expected
    assert list(events([stream[place : place + 1] for place in range(len(stream))], MOST)) == expected


@given(
    st.lists(st.sampled_from([b"data: ", b"event: ", b"x", b":", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf"])),
    st.lists(st.integers(0, 200)),
)
def test_pieces_do_not_matter(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert list(events(pieces, MOST)) == list(events([stream], MOST))


def test_an_event_comes_as_soon_as_its_empty_line_ends() -> None:
    taken: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        for piece in (b"data: a\r", b"\r", b"data: b\r\r"):
            taken.append(piece)
            yield piece

    stream = events(pieces(), MOST)
    assert next(stream) == StreamEvent(b"a")
    assert taken == [b"data: a\r", b"\r"]


@pytest.mark.parametrize(
    "stream", [b"data: " + b"x" * 1001, b"data: " + b"x" * 600 + b"\ndata: " + b"x" * 600]
)
def test_what_is_too_long_is_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError, match="a line of more than"):
        list(events([stream], MOST))

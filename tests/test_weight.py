"""No room gets heavier: a change that needs more lines saves them elsewhere, or records why not."""

from __future__ import annotations

import json

import pytest

from benchmarks.weight import RECORD, statements, weigh

ROOMS = weigh()
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_is_at_most_as_heavy_as_recorded(room: str) -> None:
    assert room in RECORDED, "a new room: `python -m benchmarks.weight --write` records it"
    now, then = ROOMS[room], RECORDED[room]
    remedy = "make it lighter, or record the new weight with `python -m benchmarks.weight --write`"
    assert now["lines"] <= then["lines"], remedy
    assert now["files"] <= then["files"], remedy
    share, least = (weight["statements"] / max(weight["lines"], 1) for weight in (now, then))
    assert share >= least - 0.005, f"{share:.1%} of its lines are statements, {least:.1%} were; {remedy}"


def test_what_counts_as_a_statement() -> None:
    head = '"""Doc."""\nX = 1\n\ndef f(a,\n      b):\n    """Doc.\n\n    More.\n    """\n\n'
    source = f"{head}    return (a +\n            b)\n"
    assert statements(source) == 2

"""Wrong values in every place of a JSON file, however deep."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Place = tuple[str | int, ...]

_DEEP, _LARGE = "@deep@", "@large@"
WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "-1": -1,
    "0.5": 0.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "10^400": _LARGE,
    "text": "x",
    "half a character": "\ud800",
    "list": [],
    "list of null": [None],
    "list of texts": ["x"],
    "list of objects": [{"x": 1}],
    "object": {},
    "object of null": {"x": None},
    "object of lists": {"x": [1]},
    "object of objects": {"x": {"y": 1}},
    "3,000 levels": _DEEP,
}


def places(whole: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in it; of a list the first three elements stand for all."""
    if place:
        yield place
    inner: list[tuple[str | int, Any]] = []
    if isinstance(whole, dict):
        inner = [*whole.items()]
    elif isinstance(whole, list):
        inner = [*enumerate(whole)][:3]
    for key, value in inner:
        yield from places(value, (*place, key))


def changed(whole: Any, place: Place, value: Any) -> str:
    """Its text with another value in one place."""
    whole = copy.deepcopy(whole)
    owner = whole
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = value
    text = json.dumps(whole).replace(json.dumps(_DEEP), "[" * 3000 + "]" * 3000)
    return text.replace(json.dumps(_LARGE), "1" + "0" * 400)


@contextmanager
def not_waiting() -> Iterator[None]:
    """Fail where the block waits for a pipe, in place of waiting for ever."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

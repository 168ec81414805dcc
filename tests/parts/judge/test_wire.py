"""Plain data crosses unchanged, nothing else crosses, and no bytes break the reader."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.parts.judge.inside import wire
from spsbench.parts.judge.inside.wire import Opaque, WireError, dumps, loads

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=20)
    | st.complex_numbers()
    | st.fractions()
)
HASHABLE = st.none() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    SCALARS | st.sets(HASHABLE) | st.frozensets(HASHABLE),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.lists(inner, max_size=3).map(deque)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """Types and contents, with NaN equal to NaN and 0.0 unlike -0.0."""
    if isinstance(value, dict):
        return [type(value), [(shape(k), shape(v)) for k, v in value.items()]]
    if isinstance(value, list | tuple | deque):
        return [type(value), [shape(item) for item in value]]
    if isinstance(value, set | frozenset):
        return [type(value), sorted(map(repr, value))]
    return [type(value), repr(value)]


@given(PLAIN)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    assert shape(loads(dumps(value))) == shape(value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text() | st.sampled_from(sorted(wire._DECODERS)),
        lambda inner: st.lists(inner, max_size=3),
    ).map(lambda data: json.dumps(data).encode())
)
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        loads(data)
    except WireError:
        return


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (namedtuple("P", "x y")(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (OrderedDict(a=1), {"a": 1}),
        (IntEnum("E", "A").A, 1),
        (np.float64(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (-0.0, -0.0),
        (bytearray(b"x"), bytearray(b"x")),
        (range(3, 9, 2), range(3, 9, 2)),
        (Decimal("1.50"), Decimal("1.50")),
        (Fraction(1, 3), Fraction(1, 3)),
        ({1: 2}.keys(), {1}),
        (1 << 4000, 1 << 4000),
    ],
)
def test_subclasses_cross_as_the_plain_type(value: Any, plain: Any) -> None:
    crossed = loads(dumps(value))
    assert crossed == plain
    assert type(crossed) is type(plain) or isinstance(plain, set)


@pytest.mark.parametrize(
    "make", [lambda: iter([1, 2]), lambda: map(abs, [1, -2]), lambda: (x for x in (1, 2))]
)
def test_iterators_can_be_used_up_and_equal_nothing(make: Any) -> None:
    assert list(loads(dumps(make()))) == [1, 2]
    assert loads(dumps(make())) != [1, 2]


@pytest.mark.parametrize("value", [object(), print, lambda: 1, type("T", (), {})(), int, json])
def test_other_objects_cross_as_their_types_name(value: Any) -> None:
    crossed = loads(dumps([value]))[0]
    assert isinstance(crossed, Opaque)
    assert crossed.type_name == type(value).__name__
    assert crossed != value
    with pytest.raises(WireError, match="is not plain data"):
        dumps([value], strict=True)


def test_an_object_that_lies_in_eq_vanishes() -> None:
    class Liar(list):  # type: ignore[type-arg]
        def __eq__(self, other: object) -> bool:
            return True

        def __iter__(self) -> Any:
            return iter([42])

        __hash__ = None  # type: ignore[assignment]

    crossed = loads(dumps(Liar([1])))
    assert type(crossed) is list
    assert crossed == [1]


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [deep(100), [0] * (wire.MAX_NODES + 1), (0 for _ in iter(int, 1))],
    ids=["deep", "many", "endless"],
)
def test_too_much_is_refused_by_the_writer(value: Any) -> None:
    with pytest.raises(WireError):
        dumps(value)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'["range",[0,1000000000,1]]',
        b'["range",[0,1,0]]',
        b'["decimal","1e999999"]',
        b'["int","0x' + b"f" * 300_000 + b'"]',
        b'["fraction",[1,0]]',
        b'["pickle","x"]',
        b"[[],1]",
        b'["set",[["list",[]]]]',
        b'["bytes","zz"]',
        b'{"a":1}',
        b"\xff",
        b"9" * 5000,
        json.dumps(["list", [0] * (wire.MAX_NODES + 1)]).encode(),
    ],
)
def test_too_much_is_refused_by_the_reader(data: bytes) -> None:
    with pytest.raises(WireError):
        loads(data)


def test_nan_and_infinity() -> None:
    nan, infinity = loads(dumps([math.nan, math.inf]))
    assert math.isnan(nan)
    assert infinity == math.inf


def test_flat_lists_cross_whole_and_are_counted() -> None:
    for flat in (["a", None, 1.5, True], [1, -2, 3], []):
        assert wire.loads(wire.dumps(flat)) == flat
    mixed = [1, True, 2**60, "x"]
    assert wire.loads(wire.dumps(mixed)) == mixed
    assert wire.loads(wire.dumps([2**60, -(2**60)])) == [2**60, -(2**60)]
    for long in (list(range(wire.MAX_NODES)), ["x"] * wire.MAX_NODES):
        with pytest.raises(wire.WireError):
            wire.dumps(long)
        with pytest.raises(wire.WireError):
            wire.loads(json.dumps(["list", long]).encode())

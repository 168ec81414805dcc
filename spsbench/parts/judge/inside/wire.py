"""What passes between judge, tests and program, and nothing else: plain data as tagged JSON, over a pipe.

JSON's own scalars stand for themselves; everything else is ``[tag, content]``. An object of
another type crosses as its type's name alone (``Opaque``), so one that lies in ``__eq__`` vanishes
on the way; a subclass of a plain type crosses as that plain type. Never pickle.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_NODES = 200_000
MAX_DEPTH = 64
_MAX_INT_BITS = 1 << 20
_SAFE_INT = 1 << 53
_MAX_EXPONENT = 1000


_THEMSELVES = frozenset({str, float, bool, type(None)})
_JSON_SCALARS = _THEMSELVES | {int}


class WireError(Exception):
    """Data too large, too deep, or not in this format."""


class TooLarge(WireError):
    """More values than ``MAX_NODES``, or deeper than ``MAX_DEPTH``."""


class ForeignData(WireError):
    """A ``Opaque`` object where plain data must be."""


class Opaque:
    """An object of the program that is not plain data: equal to nothing but itself."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name} object of the program>"


def dumps(value: Any, strict: bool = False) -> bytes:
    return json.dumps(_Encoder(strict).encode(value, 0), separators=(",", ":")).encode()


def loads(data: bytes) -> Any:
    """Decode what ``dumps`` wrote; safe for bytes that an enemy wrote."""
    try:
        return _Decoder().decode(json.loads(data), 0)
    except (ValueError, TypeError, ArithmeticError, RecursionError, IndexError, KeyError) as error:
        raise WireError(f"not plain data ({type(error).__name__})") from None


class _Counter:
    def __init__(self) -> None:
        self._nodes = 0

    def count(self, depth: int, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise TooLarge(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise TooLarge(f"deeper than {MAX_DEPTH}")


class _Encoder(_Counter):
    def __init__(self, strict: bool) -> None:
        super().__init__()
        self._strict = strict

    def encode(self, value: Any, depth: int) -> Any:
        self.count(depth)
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int:
            return _int(value)
        for plain, tag, content, _ in _PLAIN:
            if issubclass(kind, plain):
                return [tag, content(self, value, depth + 1)]
        return self._other(value, kind, depth)

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        # The methods of the base class, whatever the subclass says.
        if issubclass(kind, int):
            return _int(int.__add__(value, 0))
        if issubclass(kind, float):
            return float.__neg__(float.__neg__(value))
        if issubclass(kind, str):
            return str.__str__(value)
        if kind.__module__ == "numpy" and not getattr(value, "ndim", 1):
            return self.encode(value.item(), depth + 1)
        if isinstance(value, Iterator):
            return ["iter", self.items(value, depth + 1)]
        if self._strict and kind is Opaque:
            raise ForeignData(f"{value} is not plain data")
        if self._strict:
            raise WireError(f"{kind.__name__} is not plain data")
        return ["foreign", str(kind.__name__)[:100]]

    def items(self, values: Any, depth: int) -> list[Any]:
        encoded = list(itertools.islice(values, MAX_NODES + 1))
        kinds = set(map(type, encoded))
        # Most lists are long, flat and of one kind: these stand for themselves as a whole.
        if kinds <= _THEMSELVES or (
            kinds == {int} and min(encoded) > -_SAFE_INT and max(encoded) < _SAFE_INT
        ):
            self.count(depth, len(encoded))
            return encoded
        return [self.encode(value, depth) for value in encoded]

    def pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        return [[self.encode(k, depth), self.encode(v, depth)] for k, v in value.items()]


def _int(value: int) -> Any:
    # In hexadecimal, which takes linear time and has no limit of digits.
    return value if -_SAFE_INT < value < _SAFE_INT else ["int", hex(value)]


def _base(plain: Any) -> Callable[[_Encoder, Any, int], list[Any]]:
    return lambda encoder, value, depth: encoder.items(plain.__iter__(value), depth)


def _decimal_or_name(value: Decimal) -> Any:
    small = not value.is_finite() or abs(value.adjusted()) <= _MAX_EXPONENT
    return str(value) if small and len(str(value)) <= 2 * _MAX_EXPONENT else None


class _Decoder(_Counter):
    def decode(self, data: Any, depth: int) -> Any:
        self.count(depth)
        if not isinstance(data, list):
            if isinstance(data, dict):
                raise WireError("not plain data (an object)")
            return data
        tag, content = data
        if tag not in _DECODERS:
            raise WireError(f"not plain data (tag {str(tag)[:20]!r})")
        return _DECODERS[tag](self, content, depth + 1)

    def items(self, content: Any, depth: int) -> list[Any]:
        if not isinstance(content, list):
            raise WireError("not plain data (no list)")
        if set(map(type, content)) <= _JSON_SCALARS:
            self.count(depth, len(content))
            return content.copy()
        return [self.decode(item, depth) for item in content]

    def pairs(self, content: Any, depth: int) -> dict[Any, Any]:
        return {self.decode(key, depth): self.decode(value, depth) for key, value in content}

    def range(self, content: Any, depth: int) -> range:
        numbers = range(*self.items(content, depth))
        if abs(numbers.stop - numbers.start) // abs(numbers.step) > MAX_NODES:
            raise WireError(f"a range of more than {MAX_NODES}")
        return numbers

    def decimal(self, content: Any) -> Any:
        if content is None:
            return Opaque("Decimal")
        number = Decimal(str(content)[: 3 * _MAX_EXPONENT])
        if number.is_finite() and abs(number.adjusted()) > _MAX_EXPONENT:
            raise WireError("a decimal of absurd size")
        return number


def _big_int(content: Any) -> int:
    if len(content) > _MAX_INT_BITS // 4 + 3:
        raise WireError(f"an integer of more than {_MAX_INT_BITS} bits")
    return int(content, 16)


_NOTHING: dict[Any, Any] = {}
_Encode = Callable[[_Encoder, Any, int], Any]
_Decode = Callable[[_Decoder, Any, int], Any]

_PLAIN: tuple[tuple[type, str, _Encode, _Decode], ...] = (
    (list, "list", _base(list), _Decoder.items),
    (tuple, "tuple", _base(tuple), lambda d, c, n: tuple(d.items(c, n))),
    (dict, "dict", lambda e, v, d: e.pairs(dict(dict.items(v)), d), _Decoder.pairs),
    (set, "set", _base(set), lambda d, c, n: set(d.items(c, n))),
    (frozenset, "frozenset", _base(frozenset), lambda d, c, n: frozenset(d.items(c, n))),
    (bytes, "bytes", lambda e, v, d: bytes.hex(v), lambda d, c, n: bytes.fromhex(c)),
    (bytearray, "bytearray", lambda e, v, d: bytearray.hex(v), lambda d, c, n: bytearray.fromhex(c)),
    (complex, "complex", lambda e, v, d: [v.real, v.imag], lambda d, c, n: complex(float(c[0]), float(c[1]))),
    (range, "range", lambda e, v, d: [_int(v.start), _int(v.stop), _int(v.step)], _Decoder.range),
    (deque, "deque", _base(deque), lambda d, c, n: deque(d.items(c, n))),
    (
        Fraction,
        "fraction",
        lambda e, v, d: [_int(v.numerator), _int(v.denominator)],
        lambda d, c, n: Fraction(*d.items(c, n)),
    ),
    (Decimal, "decimal", lambda e, v, d: _decimal_or_name(v), lambda d, c, n: d.decimal(c)),
    (type(_NOTHING.keys()), "keys", _Encoder.items, lambda d, c, n: dict.fromkeys(d.items(c, n)).keys()),
    (
        type(_NOTHING.values()),
        "values",
        _Encoder.items,
        lambda d, c, n: dict(enumerate(d.items(c, n))).values(),
    ),
    (type(_NOTHING.items()), "items", _Encoder.items, lambda d, c, n: dict(d.items(c, n)).items()),
)
_DECODERS: dict[str, _Decode] = {tag: decode for _, tag, _, decode in _PLAIN} | {
    "int": lambda d, c, n: _big_int(c),
    "iter": lambda d, c, n: iter(d.items(c, n)),
    "foreign": lambda d, c, n: Opaque(str(c)[:100]),
}


MAX_BYTES = 4 << 20
"""Longest message that is accepted from a program."""

QUESTION_BYTES = 8
"""Of a message to a program after the first, and of its answer, this many identify the question."""

_CHUNK_BYTES = 1 << 16


class PipeClosed(Exception):
    """The other side is gone."""


class TooLong(Exception):
    """A message announces more than is accepted."""


class DeadlinePassed(BaseException):
    """The wall deadline is over. Not an ``Exception``, so that no test swallows it by accident."""


def send(descriptor: int, message: bytes, deadline: float | None = None) -> None:
    left = memoryview(len(message).to_bytes(4, "big") + message)
    while left:
        try:
            left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT, deadline)
        except BrokenPipeError:
            raise PipeClosed from None


def receive(descriptor: int, deadline: float | None = None, most_bytes: int = MAX_BYTES) -> bytes:
    """Read one message, in one call if it is there: each side waits for the other's before it sends again."""
    message = bytearray()
    wanted = 4
    while len(message) < wanted:
        message += _some(descriptor, deadline)
        if wanted == 4 <= len(message):
            size = int.from_bytes(message[:4], "big")
            if size > most_bytes:
                raise TooLong
            wanted += size
    if len(message) > wanted:
        raise TooLong
    return bytes(message[4:])


def waiting(descriptor: int) -> bool:
    """Whether unread bytes are there."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _some(descriptor: int, deadline: float | None) -> bytes:
    while True:
        _wait(descriptor, select.POLLIN, deadline)
        try:
            part = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not part:
            raise PipeClosed
        return part


def _wait(descriptor: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    left_s = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, event)
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise DeadlinePassed

"""Whether what was read from JSON has a declared type, element by element."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from spsbench.base.errors import as_typed


def fault_of(value: Any, wanted: Any, place: str = "") -> str | None:
    """Return the first value that is not of a type, as ``rows[2].k is "x", not int``; None without one.

    Keys that are missing are no fault here: who needs one asks with ``get``. NaN is written as null, which a
    float may be.
    """
    return next(_faults(value, wanted, place), None)


def _faults(value: Any, wanted: Any, place: str) -> Iterator[str]:
    if wanted is float and value is None:
        return
    if get_origin(wanted) in (Union, UnionType):
        yield from _faults_of_union(value, wanted, place)
    elif not _is_of_kind(value, wanted):
        yield _wrong(value, wanted, place)
    else:
        for element, kind, inner in _typed_elements(value, wanted, place):
            yield from _faults(element, kind, inner)


def _faults_of_union(value: Any, wanted: Any, place: str) -> Iterator[str]:
    """Where no type fits; of a container the place within it."""
    faults = [next(_faults(value, each, place), None) for each in get_args(wanted)]
    if all(faults):
        within = [fault for fault in faults if fault and not fault.startswith(f"{place or 'it'} is ")]
        yield within[0] if within else _wrong(value, wanted, place)


def _typed_elements(value: Any, wanted: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    """(element, its type, its place) of a container."""
    inner = get_args(wanted)
    if fields := _fields(wanted):
        for name, kind in fields.items():
            if name in value:
                yield value[name], kind, f"{place}.{name}" if place else name
    elif isinstance(value, dict) and len(inner) == 2:
        for key, each in value.items():
            yield each, inner[1], f"{place}.{key}" if place else str(key)
    elif isinstance(value, list) and inner:
        fixed = get_origin(wanted) is tuple and inner[-1] is not Ellipsis
        for number, each in enumerate(value):
            yield each, inner[min(number, len(inner) - 1)] if fixed else inner[0], f"{place}[{number}]"


def _is_of_kind(value: Any, wanted: Any) -> bool:
    """Whatever the value contains."""
    origin = get_origin(wanted) or wanted
    if origin is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(wanted))
    if _fields(wanted) or origin in (dict, Mapping):
        return isinstance(value, dict)
    if origin in (list, tuple, Sequence):
        return isinstance(value, list) and (origin is not tuple or _has_length(value, get_args(wanted)))
    if origin is float:
        return type(value) in (int, float)
    return type(value) is (NoneType if origin is None else origin)


def _has_length(values: Sequence[Any], inner: Sequence[Any]) -> bool:
    return not inner or ... in inner or len(values) == len(inner)


def _wrong(value: Any, wanted: Any, place: str) -> str:
    return f"{place or 'it'} is {as_typed(value)}, not {_name_in_json(wanted)}"


def _name_in_json(wanted: Any) -> str:
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_name_in_json, get_args(wanted))))
    if get_origin(wanted) is Literal:
        return " or ".join(map(as_typed, get_args(wanted)))
    is_list = (get_origin(wanted) or wanted) in (list, tuple, Sequence)
    return words.get(wanted) or ("a list" if is_list else "an object")


@cache
def _fields(wanted: Any) -> Mapping[str, Any]:
    """Of a TypedDict or a dataclass the keys with their types; empty for any other type."""
    if not (hasattr(wanted, "__total__") or dataclasses.is_dataclass(wanted)):
        return {}
    hints = get_type_hints(wanted)
    return {name: _bare(kind) for name, kind in hints.items()}


def _bare(kind: Any) -> Any:
    return _bare(get_args(kind)[0]) if get_origin(kind) in (NotRequired, Required) else kind

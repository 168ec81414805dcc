"""Drafters, rules, tasks and other named kinds: built in, from an installed package, or from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from spsbench.errors import UnavailableError, UsageError
from spsbench.records import OptionValue, Spec

Kind = TypeVar("Kind")
Options = Mapping[str, OptionValue]
Check = Callable[[Options, str], None]
"""Refuses options whose values have the right type and are not allowed; the text is the flag to name."""

_TYPES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def find(name: str, ours: Mapping[str, Kind], group: str, kind: type[Kind], flag: str) -> Kind:
    """What a name stands for.

    Args:
        name: a key of ``ours``, the name of an entry point, or ``path/to/file.py:attribute``.
        ours: what this package brings.
        group: of entry points, e.g. ``spsbench.drafters``.
        kind: what must come of it.
        flag: the command-line flag that named it.

    Raises:
        UsageError: the name is unknown, or stands for something else.
        UnavailableError: its package or file cannot be imported.
    """
    return ours[name] if name in ours else theirs(name, ours, group, kind, flag)


def theirs(name: str, ours: Iterable[str], group: str, kind: type[Kind], flag: str) -> Kind:
    """What a name stands for that is none of ``ours``: an entry point or a file's attribute; see ``find``."""
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _checked(_from_file(Path(path), attribute, flag), kind, name, flag)
    points = {point.name: point for point in metadata.entry_points(group=group)}
    if name in points:
        return _checked(_loaded(points[name], flag), kind, name, flag)
    raise unknown(name, [*ours, *points], flag, ", or name one as file.py:attribute")


def unknown(name: str, known: Iterable[str], flag: str, more: str = "") -> UsageError:
    """The error for a name that is not among the known ones; suggests the closest.

    Args:
        name: what was given.
        known: the names that exist.
        flag: the flag or key at fault.
        more: what else may be given.
    """
    lowered = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), lowered, n=1)
    hint = f"Did you mean {lowered[close[0]]}? " if close else ""
    remedy = f"{hint}Choose from {', '.join(lowered.values())}{more}."
    return UsageError(f"{name or 'an empty text'} is unknown.", flag=flag, remedy=remedy)


def settled(
    name: str, options: Options, spec: Spec, flag: str, check: Check | None = None
) -> dict[str, OptionValue]:
    """Every option of what has a name, as given or by default.

    Args:
        name: of the drafter, rule or policy.
        options: its options with their defaults.
        spec: what was typed.
        flag: the command-line flag that named it.
        check: what else the values must be.

    Raises:
        UsageError: an option it does not have, a value of another type than the default's, or one that
            ``check`` refuses.
    """
    for option, value in spec.options:
        if option not in options:
            has = f"It has {', '.join(options)}." if options else "It has none."
            raise UsageError(f"{name} has no option {option}.", flag=flag, remedy=has)
        wanted = type(options[option])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise UsageError(
                f"{name}:{option}={value} is not valid.",
                flag=flag,
                remedy=f"Give {_TYPES[wanted]}, e.g. {options[option]}.",
            )
    found = dict(options) | dict(spec.options)
    if check is not None:
        check(found, flag)
    return found


def within(name: str, option: str, low: float, high: float, *, above: bool = False) -> Check:
    """A check that an option lies from ``low`` to ``high``.

    Args:
        name: of the drafter, rule or policy.
        option: of it.
        low, high: the limits, both allowed; ``high`` may be infinity.
        above: ``low`` itself is not allowed.
    """

    def check(options: Options, flag: str) -> None:
        value = float(options[option])
        if low <= value <= high and not (above and value == low):
            return
        if high == inf:
            allowed = f"at least {low:g}"
        else:
            allowed = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise UsageError(f"{name}:{option} must be {allowed}, got {options[option]}.", flag=flag)

    return check


def one_of(name: str, option: str, *allowed: OptionValue) -> Check:
    """A check that an option of ``name`` has one of a few values."""

    def check(options: Options, flag: str) -> None:
        if options[option] not in allowed:
            listed = " or ".join(map(str, allowed))
            raise UsageError(f"{name}:{option} must be {listed}, got {options[option]}.", flag=flag)

    return check


def together(*checks: Check) -> Check:
    """One check after the other."""

    def check(options: Options, flag: str) -> None:
        for each in checks:
            each(options, flag)

    return check


def deferred(place: str) -> Callable[..., Any]:
    """The function at ``module:name``, imported when it is first called.

    So a name and its options can be checked, listed and completed without importing torch.
    """

    def call(*arguments: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)

    return call


def names(ours: Mapping[str, Any], group: str) -> dict[str, str]:
    """Every name that can be given and where it comes from: ``spsbench`` or another package."""
    points = metadata.entry_points(group=group)
    others = {point.name: point.dist.name if point.dist else "another package" for point in points}
    return others | dict.fromkeys(ours, "spsbench")


def _from_file(path: Path, attribute: str, flag: str) -> Any:
    if not path.is_file():
        raise UnavailableError(f"{path} does not exist.", flag=flag, remedy="Name a Python file.")
    spec = importlib.util.spec_from_file_location(f"spsbench_plugin_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise UnavailableError(
            f"{path} cannot be imported ({type(error).__name__}: {error}).",
            flag=flag,
            remedy="Correct the file.",
        ) from error
    if not hasattr(module, attribute):
        raise UsageError(f"{path} has no {attribute}.", flag=flag, remedy="Name what the file defines.")
    return getattr(module, attribute)


def _loaded(point: metadata.EntryPoint, flag: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise UnavailableError(
            f"{point.name} ({point.value}) cannot be imported ({type(error).__name__}: {error}).",
            flag=flag,
            remedy="Correct or remove its package.",
        ) from error


def _checked(found: Any, kind: type[Kind], name: str, flag: str) -> Kind:
    if isinstance(found, kind):
        return found
    raise UsageError(
        f"{name} is {type(found).__name__}, not {kind.__name__}.",
        flag=flag,
        remedy=f"It must be a spsbench {kind.__name__}; see docs/extending.md.",
    )

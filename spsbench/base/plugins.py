"""Drafters, rules, tasks and other named kinds: built in, from an installed package, or from a file."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import OptionValue, Spec

Kind = TypeVar("Kind")
Options = Mapping[str, OptionValue]
Check = Callable[[Options, str], None]
"""Refuses options whose values have the right type and are not allowed; the text is the flag to name."""

_TYPES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Registry(dict[str, Kind]):
    """Kinds of one sort by name. Its items are ours; others come from installed packages and files.

    Args:
        sort: what a kind must be.
        group: entry points under this name bring kinds of other packages, e.g. ``spsbench.drafters``.
        flag: the command-line flag that names a kind.
        ours: what this package brings; a row each, so that listing and refusing import no code.
        room: a package whose modules may bring a kind without a row: ``KIND`` in ``room/NAME.py``.
    """

    def __init__(
        self, sort: type[Kind], group: str, flag: str, ours: Iterable[Any] = (), room: str | None = None
    ) -> None:
        super().__init__({kind.name: kind for kind in ours})
        self._sort = sort
        self._group = group
        self._flag = flag
        self._room = room

    def find(self, name: str, flag: str | None = None, known: Iterable[str] = ()) -> Kind:
        """Find the kind that a name stands for.

        Args:
            name: a built-in one, an entry point's, or ``path/to/file.py:attribute``.
            flag: what named it; the registry's unless given.
            known: further names, for the remedy.

        Raises:
            UsageError: the name is unknown, or stands for something else.
            UnavailableError: its package or file cannot be imported.
        """
        if name in self:
            return self[name]
        flag = flag or self._flag
        modules = {} if names_file(name) else self._modules_by_kind()
        if names_file(name):
            path, _, attribute = name.rpartition(":")
            kind = _kind_from_file(Path(path), attribute, flag)
        elif name in modules:
            kind = importlib.import_module(modules[name]).KIND
        else:
            points = {point.name: point for point in metadata.entry_points(group=self._group)}
            if name not in points:
                more = ", or name one as file.py:attribute"
                raise unknown(name, [*known, *self, *modules, *points], flag, more)
            kind = _loaded(points[name], flag)
        if isinstance(kind, self._sort):
            if name in modules:
                self[name] = kind
            return kind
        raise UsageError(
            f"{name} is {type(kind).__name__}, not {self._sort.__name__}.",
            flag=flag,
            remedy=f"It must be a spsbench {self._sort.__name__}; see docs/extending.md.",
        )

    def names(self) -> dict[str, str]:
        """Return every name that can be given, and where it comes from: ``spsbench`` or another package."""
        points = metadata.entry_points(group=self._group)
        others = {point.name: point.dist.name if point.dist else "another package" for point in points}
        return others | dict.fromkeys([*self, *self._modules_by_kind()], "spsbench")

    def _modules_by_kind(self) -> dict[str, str]:
        """By the kind's name; they are read, not imported."""
        folders = [] if self._room is None else importlib.import_module(self._room).__path__
        files = (file for folder in folders for file in sorted(Path(folder).glob("*.py")))
        return {
            file.stem.replace("_", "-"): f"{self._room}.{file.stem}"
            for file in files
            if re.search(r"^KIND\b", file.read_text(encoding="utf-8"), re.MULTILINE)
        }


@dataclass(frozen=True, slots=True)
class OptionedKind:
    """What drafters, rules and policies by name have in common.

    Each also has ``build``, which makes one from all options, ``options``, their names and defaults (a value
    given must be of the default's type), and ``check``, what their values must be.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, with its source.
    """

    FLAG: ClassVar[str]

    name: str
    summary: str

    def settled(self, spec: Spec, flag: str | None = None) -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``settled``.

        Raises:
            UsageError: an option is unknown, or ``check`` refuses its value.
        """
        kind: Any = self
        options = settled(self.name, kind.options, spec, flag or self.FLAG)
        if kind.check is not None:
            kind.check(options, flag or self.FLAG)
        return options


def names_file(name: str) -> bool:
    """Return whether a name stands for a Python file, which is executed: ``path/to/file.py:attribute``."""
    return name.rpartition(":")[0].endswith(".py")


def unknown(name: str, known: Iterable[str], flag: str, more: str = "", sort: str = "") -> UsageError:
    """Return the error for a name that is not among the known ones; suggests the closest.

    ``more`` is what else may be given, ``sort`` what the name is of, e.g. ``pair``.
    """
    lowered = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    hint = f"Did you mean {lowered[close[0]]}? " if close else ""
    remedy = f"{hint}Choose from {', '.join(lowered.values())}{more}."
    subject = f"the {sort} {name}" if sort else name or "an empty text"
    return UsageError(f"{subject} is unknown.", flag=flag, remedy=remedy)


def settled(name: str, options: Options, spec: Spec, flag: str) -> dict[str, OptionValue]:
    """Return every option of what has a name, as given or by default.

    Args:
        name: of the drafter, rule, policy or engine.
        options: its options with their defaults.
        spec: what was typed.
        flag: the command-line flag that named it.

    Raises:
        UsageError: an option it does not have, or a value of another type than the default's.
    """
    for option, value in spec.options:
        if option not in options:
            has = f"It has {', '.join(options)}." if options else "It has none."
            raise UsageError(f"{name} has no option {option}.", flag=flag, remedy=has)
        wanted = type(options[option])
        if type(value) is not wanted and (wanted, type(value)) not in ((float, int), (str, int)):
            remedy = f"Give {_TYPES[wanted]}, e.g. {options[option]}."
            raise UsageError(f"{name}:{option}={value} is not valid.", flag=flag, remedy=remedy)
    typed = {name: str(value) if type(options[name]) is str else value for name, value in spec.options}
    return dict(options) | typed


def within(name: str, low: float, high: float, *options: str, above: bool = False) -> Check:
    """Make a check that an option of ``name`` lies from ``low`` to ``high``; ``above`` excludes ``low``
    itself, and ``high`` may be infinity.
    """
    if high == inf:
        allowed = f"at least {low:g}"
    else:
        allowed = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"

    def check(values: Options, flag: str) -> None:
        for option in options:
            value = float(values[option])
            if not low <= value <= high or (above and value == low):
                raise UsageError(f"{name}:{option} must be {allowed}, got {values[option]}.", flag=flag)

    return check


def one_of(name: str, option: str, *allowed: OptionValue) -> Check:
    """Make a check that an option of ``name`` has one of a few values."""

    def check(options: Options, flag: str) -> None:
        if options[option] not in allowed:
            listed = " or ".join(map(str, allowed))
            raise UsageError(f"{name}:{option} must be {listed}, got {options[option]}.", flag=flag)

    return check


def deferred(place: str, *, spread: bool = False) -> Callable[..., Any]:
    """Make a stand-in for the function or class at ``module:name``, which is imported at the first call; with
    ``spread`` it takes its options as keywords.

    So a name and its options can be checked, listed and completed without importing torch.
    """

    def call(*arguments: Any) -> Any:
        module, _, name = place.partition(":")
        target = getattr(importlib.import_module(module), name)
        return target(**arguments[0]) if spread else target(*arguments)

    return call


def _kind_from_file(path: Path, attribute: str, flag: str) -> Any:
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
        why = f"{path} cannot be imported ({type(error).__name__}: {error})."
        raise UnavailableError(why, flag=flag, remedy="Correct the file.") from error
    if not hasattr(module, attribute):
        raise UsageError(f"{path} has no {attribute}.", flag=flag, remedy="Name what the file defines.")
    return getattr(module, attribute)


def _loaded(point: metadata.EntryPoint, flag: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        why = f"{point.name} ({point.value}) cannot be imported ({type(error).__name__}: {error})."
        raise UnavailableError(why, flag=flag, remedy="Correct or remove its package.") from error


def require_grammars() -> None:
    """Refuse a grammar where llguidance is not installed."""
    from importlib.util import find_spec

    if find_spec("llguidance") is None:
        why = "masks of a grammar are made by llguidance, which is not installed."
        raise UnavailableError(why, flag="--process grammar", remedy='pip install "spsbench[grammar]"')

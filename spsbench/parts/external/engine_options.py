"""The options in an engine's name: their types, their values and the releases that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spsbench.base import DRAFT, RELEASE, Options, Spec, UsageError, settled

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class EngineOption:
    """An option of an engine; its type is that of ``default``.

    Attributes:
        choices: its values; others are refused.
        within: the least and the most of a number.
        between: whether neither of these two is a value.
        since: the first release that has it, where an older one that can be installed has not.
        theirs: it is the engine's own, handed on only where it is typed: without it the worker asks for K
            drafted tokens in every loop.
        of: the ``speculation`` that it belongs to, ``draft`` or ``lookup``.
        without: another option, beside which it has no effect.
        declares: the field of the protocol's ``Drafting`` that it sets.
        declared: to what, where that is not its value; 0 then declares nothing.
    """

    default: Value
    choices: tuple[str, ...] = ()
    within: tuple[float, float] | None = None
    between: bool = False
    since: str | None = None
    theirs: bool = False
    of: str | None = None
    without: str | None = None
    declares: str | None = None
    declared: Value | None = None


def share(
    *,
    since: str | None = None,
    declares: str | None = "p_min",
    between: bool = False,
    without: str | None = None,
) -> EngineOption:
    """The option of a probability of drafted tokens, by default the one below which a draft ends."""
    return EngineOption(
        0.0,
        within=(0.0, 1.0),
        between=between,
        since=since,
        theirs=True,
        of=DRAFT,
        without=without,
        declares=declares,
    )


def read(
    name: str, table: Mapping[str, EngineOption], spec: Spec, flag: str, release: str | None = None
) -> Options:
    """Every option of an engine, as given or by default; those of a release, if it is known.

    Raises:
        UsageError: an option that the engine or its release has not, or a value that it does not take.
    """
    known = {option: each for option, each in table.items() if _has(each, release)}
    for option, _ in spec.options:
        if option in table and option not in known:
            first = table[option].since
            lacks = f"{name.partition(RELEASE)[0]} {release} has no option {option}"
            why = f"{lacks}: {first} is the first known to have it."
            raise UsageError(why, flag=flag, remedy=f"It has {', '.join(known)}.")
    options = settled(name, {option: each.default for option, each in known.items()}, spec, flag)
    for option, value in spec.options:
        each = known[option]
        if (remedy := _remedy(each, value)) is not None:
            raise UsageError(f"{name}:{option}={value} is not valid.", flag=flag, remedy=remedy)
        if each.of not in (None, speculation := options.get("speculation", DRAFT)):
            why = f"{name}:{option} is of speculation={each.of}, and speculation={speculation} is asked for."
            raise UsageError(why, flag=flag, remedy="Leave one of the two out.")
        if each.without is not None and options.get(each.without):
            why = f"{name}:{option} has no effect beside {each.without}."
            raise UsageError(why, flag=flag, remedy="Leave one of the two out.")
    return options


def _remedy(option: EngineOption, value: Value) -> str | None:
    """None for a value that the option takes."""
    if option.choices and value not in (*option.choices, option.default):
        return f"Choose from {', '.join(option.choices)}."
    if option.within is None:
        return None
    low, high = option.within
    is_end = option.between and float(value) in option.within
    if low <= float(value) <= high and not is_end:
        return None
    if option.between:
        return f"Give a number between {low:g} and {high:g}."
    return f"Give a number from {low:g} to {high:g}." if high < _MOST else f"Give {low:g} or more."


_MOST = 1e9


def at_least(
    low: float, default: Value = 0, since: str | None = None, declares: str | None = None
) -> EngineOption:
    return EngineOption(default, within=(low, _MOST), since=since, theirs=True, of=DRAFT, declares=declares)


def _has(option: EngineOption, release: str | None) -> bool:
    if option.since is None or release is None:
        return True
    # Not at the top: only some engines are asked for a release.
    from packaging.version import InvalidVersion, Version

    try:
        return Version(release.split()[0]) >= Version(option.since)
    except InvalidVersion:  # a build of somebody's own
        return True

"""Two tiers of tests: ``make test`` runs what is not marked ``thorough``, ``make thorough`` what is.

``@pytest.mark.thorough`` marks a test, or as ``pytestmark`` a file. ``thorough_but(*kept)`` keeps some
cases in the fast tier: those with one of the strings in their name, so many as a number says, spread evenly;
with ``"each"`` enough for every value of every parameter, with ``"pairs"`` for every pair of values.
``soak_but(*kept)`` leaves all but such cases to ``make soak``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import pytest

Tiers = dict[str, set[str]]
TIERS = pytest.StashKey[Tiers]()
"""Test functions by ``path::name``, and in which tiers they have cases."""


def parameters(item: pytest.Item) -> dict[str, object]:
    """A case's parameters, with values that can be compared."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return {name: repr(value) for name, value in given.items()}


def covering(cases: Sequence[Mapping[str, object]], together: int) -> set[int]:
    """Enough cases for every value of every parameter, or of so many parameters together."""
    met = [set(combinations(sorted(case.items()), min(together, len(case)))) for case in cases]
    chosen, missing = set[int](), set().union(*met)
    while missing:
        best = max(range(len(cases)), key=lambda index: len(met[index] & missing))
        chosen.add(best)
        missing -= met[best]
    return chosen


def kept(
    names: Sequence[str], cases: Sequence[Mapping[str, object]], what: Collection[str | int]
) -> set[int]:
    """Which cases of a test stay in the fast tier."""
    chosen = set[int]()
    for each in what:
        if isinstance(each, int):
            number = min(each, len(names))
            chosen |= {len(names) * index // number for index in range(number)}
        elif each in ("each", "pairs"):
            chosen |= covering(cases, 2 if each == "pairs" else 1)
        else:
            chosen |= {index for index, name in enumerate(names) if each in name}
    return chosen


def divide(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Mark what ``thorough_but`` and ``soak_but`` do not keep; remember the tiers of every function."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.split("[")[0]].append(item)
    tiers = config.stash.setdefault(TIERS, {})
    for function, its in functions.items():
        slow = ("soak", "thorough")
        for tier in slow:
            if mark := its[0].get_closest_marker(f"{tier}_but"):
                cases = [parameters(item) for item in its]
                stays = kept([item.name for item in its], cases, mark.args)
                for index in set(range(len(its))) - stays:
                    its[index].add_marker(tier)
        tiers[function] = {next(filter(item.get_closest_marker, slow), "fast") for item in its}

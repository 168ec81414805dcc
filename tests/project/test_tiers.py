"""The fast tier of a test with many cases, see ``tiers``; and that no clock decides a property test."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, settings
from support.tiers import covering, kept

CASES = [dict(zip("abc", values, strict=True)) for values in product(range(2), range(3), range(4))]
NAMES = [f"test[{'-'.join(map(str, case.values()))}]" for case in CASES]


def test_each_value_and_every_pair_of_values_are_met() -> None:
    each, pairs = covering(CASES, 1), covering(CASES, 2)
    assert len({value for index in each for value in CASES[index].items()}) == 2 + 3 + 4
    assert len(each) == 4
    met = {pair for index in pairs for pair in combinations(CASES[index].items(), 2)}
    assert len(met) == 2 * 3 + 2 * 4 + 3 * 4
    assert len(pairs) < len(CASES)
    assert covering([{}], 2) == {0}


def test_what_is_kept() -> None:
    assert kept(NAMES, CASES, [3]) == {0, 8, 16}
    assert kept(NAMES[:2], CASES[:2], [5]) == {0, 1}
    assert kept(NAMES, CASES, ["[1-2-3]", "[0-0-"]) == {0, 1, 2, 3, 23}
    assert kept(NAMES, CASES, ["each", "[1-0-0]"]) >= covering(CASES, 1) | {12}


@pytest.mark.parametrize("profile", ["repeatable", "exploring"])
def test_no_property_test_fails_since_its_process_was_paused(profile: str) -> None:
    """Without a deadline drawing may still take 30 s at most: a paused process exceeds that by itself."""
    unhurried = settings.get_profile(profile)
    assert unhurried.deadline is None
    assert HealthCheck.too_slow in unhurried.suppress_health_check

"""The fast tier of a test with many cases, see ``tiers``."""

from __future__ import annotations

from itertools import combinations, product

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

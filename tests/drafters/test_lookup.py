"""Prompt lookup finds what a search of the whole sequence finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.registry import Context, build_drafter
from spsbench.law.enumeration import TableModel

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def searched(tokens: Sequence[int], k: int, max_n: int, min_n: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if n < len(tokens) and list(tokens[end - n : end]) == list(tokens[-n:]):
                return list(tokens[end : end + k])
    return []


def differences(drafter: LookupDrafter, text: list[int], sizes: tuple[int, int], steps: list[int]) -> int:
    """How often the drafter proposes something else than the search, along a sequence that grows."""
    found, end = 0, min(len(text), 1 + steps[0])
    drafter.begin(text[:end])
    for step in [*steps, len(text)]:
        draft = drafter.draft(text[:end], 4, torch.zeros(4))
        found += draft.tokens.tolist() != searched(text[:end], 4, *sizes)
        end = min(len(text), end + step)
        drafter.observe(text[:end], 0)
    return found


@given(TEXTS, st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(1, 5), min_size=1, max_size=10))
def test_it_finds_what_a_search_finds(text: list[int], min_n: int, more: int, steps: list[int]) -> None:
    sizes = (min_n + more, min_n)
    assert differences(LookupDrafter(*sizes), text, sizes, steps) == 0


def test_the_comparison_sees_a_first_place_for_the_last() -> None:
    class First(LookupDrafter):
        def _index(self, tokens: Sequence[int]) -> None:
            super()._index(tokens)
            self._behind = {gram: places[:1] for gram, places in self._behind.items()}

    text = [1, 2, 3, 1, 2, 0, 1, 2, 1, 2]
    assert differences(LookupDrafter(3, 1), text, (3, 1), [1] * 10) == 0
    assert differences(First(3, 1), text, (3, 1), [1] * 10) > 0


def test_a_new_sequence_forgets_the_last() -> None:
    drafter = LookupDrafter(3, 1)
    drafter.begin([1, 2, 3, 1])
    assert drafter.draft([1, 2, 3, 1], 4, torch.zeros(4)).tokens.tolist() == [2, 3, 1]
    drafter.begin([1])
    assert drafter.draft([1], 4, torch.zeros(4)).tokens.tolist() == []


@pytest.mark.parametrize("spec", ["lookup:min_n=0", "lookup:max_n=2:min_n=3"])
def test_sizes_that_find_nothing_are_refused(spec: str) -> None:
    target = TableModel(lambda context: (0.5, 0.5), 2)
    context = Context(target, None, SamplingParams(), torch.device("cpu"), 2)
    with pytest.raises(UsageError, match="min_n"):
        build_drafter(Spec.parse(spec), context)

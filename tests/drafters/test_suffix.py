"""Suffix drafting finds the matches that a search of the whole text finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spsbench.drafters.suffix import Match, SuffixAutomaton, SuffixDrafter

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def searched(text: Sequence[int]) -> Match:
    """The longest suffix with an earlier place, and the first such place."""
    for length in range(len(text) - 1, 0, -1):
        for end in range(length, len(text)):
            if text[end - length : end] == text[len(text) - length :]:
                return Match(length, end)
    return Match(0, 0)


def elsewhere(text: Sequence[int], other: Sequence[int]) -> Match:
    """The longest suffix of a text that occurs in another one, and its first place there."""
    for length in range(len(text), 0, -1):
        for end in range(length, len(other) + 1):
            if other[end - length : end] == text[len(text) - length :]:
                return Match(length, end)
    return Match(0, 0)


def differences(automaton: SuffixAutomaton, text: list[int]) -> int:
    found = 0
    for i, token in enumerate(text):
        automaton.extend(token)
        found += next(automaton.repeated(), Match(0, 0)) != searched(text[: i + 1])
    return found


@given(TEXTS)
def test_it_finds_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    assert differences(SuffixAutomaton(), text) == 0


@given(TEXTS, TEXTS)
def test_it_follows_another_text(other: list[int], text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for token in other:
        automaton.extend(token)
    state = length = 0
    for i, token in enumerate(text):
        state, length = automaton.step(state, length, token)
        behind = next(automaton.matches(state, length)).behind if length else 0
        assert Match(length, behind) == elsewhere(text[: i + 1], other)


def test_the_comparison_sees_states_that_are_not_split() -> None:
    class Unsplit(SuffixAutomaton):
        def _own_successor(self, at: int, token: int) -> int:
            return self._next[at][token]

    text = [0, 1, 1, 2, 1, 1, 0, 1, 2, 2]
    assert differences(SuffixAutomaton(), text) == 0
    assert differences(Unsplit(), text) > 0


def drafted(drafter: SuffixDrafter, tokens: list[int], k: int = 4) -> list[int]:
    return drafter.draft(tokens, k, torch.zeros(k)).tokens.tolist()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 6))
def test_it_proposes_what_followed(text: list[int], min_length: int, k: int) -> None:
    drafter = SuffixDrafter(min_length, across=False)
    drafter.begin(text[:1])
    match = searched(text)
    wanted = text[match.behind : match.behind + k] if match.length >= min_length else []
    assert drafted(drafter, text, k) == wanted


def spoken(drafter: SuffixDrafter, prompt: list[int], output: list[int]) -> None:
    drafter.begin(prompt)
    drafter.observe([*prompt, *output], 0)


@pytest.mark.parametrize(("across", "wanted"), [(True, [5, 6]), (False, [])])
def test_earlier_outputs_count_across_alone(across: bool, wanted: list[int]) -> None:
    drafter = SuffixDrafter(1, across)
    spoken(drafter, [9, 8], [4, 5, 6])
    drafter.begin([7, 4])
    assert drafted(drafter, [7, 4]) == wanted


def test_nothing_is_matched_or_proposed_past_an_output() -> None:
    drafter = SuffixDrafter(1, across=True)
    spoken(drafter, [9], [1, 2])
    spoken(drafter, [9], [3, 4])
    drafter.begin([0, 1])
    assert drafted(drafter, [0, 1]) == [2], "not 3, which began another output"
    drafter.observe([0, 1, 2], 0)
    assert drafted(drafter, [0, 1, 2]) == [], "nothing followed"


def test_prompts_of_earlier_sequences_do_not_count() -> None:
    drafter = SuffixDrafter(1, across=True)
    spoken(drafter, [1, 2, 3], [5])
    drafter.begin([1])
    assert drafted(drafter, [1]) == []


def test_the_longer_match_wins_and_the_own_one_of_equals() -> None:
    drafter = SuffixDrafter(1, across=True)
    spoken(drafter, [9], [1, 2, 3])
    drafter.begin([2, 4, 1, 2])
    assert drafted(drafter, [2, 4, 1, 2], 1) == [3], "1 2 was an output, only 2 occurred here"
    drafter.begin([2, 4, 2])
    assert drafted(drafter, [2, 4, 2], 1) == [4]

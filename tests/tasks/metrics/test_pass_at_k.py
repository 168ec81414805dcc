"""pass@k against the definition, counted by enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest

from spsbench.tasks.metrics.builtin import pass_at_k, pass_at_k_per_problem


@pytest.mark.parametrize(("n", "c", "k"), [(5, 0, 2), (5, 1, 2), (6, 3, 3), (4, 4, 1), (10, 2, 10)])
def test_equals_the_share_of_subsets_with_a_passing_sample(n: int, c: int, k: int) -> None:
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k_per_problem([n], [c], [k]) == {f"pass@{k}": [pytest.approx(share)]}


def test_is_none_where_samples_are_too_few() -> None:
    assert pass_at_k([10, 10], [5, 0]) == {"pass@1": pytest.approx(0.25), "pass@10": 0.5, "pass@100": None}
    assert pass_at_k_per_problem([1, 10], [1, 1])["pass@10"] == [None, 1.0]
    assert pass_at_k([1, 10], [1, 1])["pass@10"] is None


@pytest.mark.parametrize(
    ("samples", "passed"), [([], []), ([3], [4]), ([3], [-1]), ([0], [0]), ([1, 1], [1])]
)
def test_impossible_counts_are_refused(samples: list[int], passed: list[int]) -> None:
    with pytest.raises(ValueError):
        pass_at_k(samples, passed)

"""Adaptive verification: two requests whose cuts depend on each other's drawn tokens, by their joint law."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.two_requests import EXACT_CUTS, WRONG_CUTS, Apart, Cut, apart, joint, pair
from spsbench.law.enumeration import EXACT


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def over(tables: range, cut: Cut) -> list[Apart]:
    return [apart(pair(seed), cut) for seed in tables]


def keeps_both(tables: range) -> None:
    """Each request has its target's law, and the two texts are independent."""
    for cut in EXACT_CUTS.values():
        assert max(max(each) for each in over(tables, cut)) < EXACT


def test_a_global_cut_by_survival_keeps_each_law_and_independence() -> None:
    keeps_both(range(4))


@pytest.mark.thorough
def test_a_global_cut_by_survival_on_more_tables() -> None:
    keeps_both(range(4, 20))


@pytest.mark.parametrize("name", WRONG_CUTS)
def test_a_cut_that_reads_ahead_does_not(name: str) -> None:
    """The last one keeps every request's own law, and still makes the two dependent."""
    found = over(range(10), WRONG_CUTS[name])
    assert max(each.joint for each in found) > 1e-2
    assert (max(each.marginal for each in found) < EXACT) == (name == "by the other's second row")


def test_cuts_depend_on_the_other_requests_tokens_both_ways() -> None:
    """Else the proposition says nothing: one draft's cut is not the same under all drafts of the other."""

    def depends(seed: int, cut: Cut) -> bool:
        first, second = ([draft for _, draft in each.drafts()] for each in pair(seed))
        ways = (
            any(len({cut((one, other))[0] for other in second}) > 1 for one in first),
            any(len({cut((other, one))[1] for other in first}) > 1 for one in second),
        )
        return all(ways)

    assert any(depends(seed, cut) for seed in range(20) for cut in list(EXACT_CUTS.values())[1:3])


def test_a_joint_law_adds_up() -> None:
    law = joint(pair(1), EXACT_CUTS["the best 3 slots by survival"])
    assert law.sum() == pytest.approx(1, abs=EXACT)
    assert np.all(law >= 0)

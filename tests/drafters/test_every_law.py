"""Every lossless drafter under every lossless rule and every policy keeps the target's law, exactly.

The lists come from the registries: what is added there is proved here, or fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from spsbench.base.axes import FIXED, MODIFIED_REJECTION
from spsbench.base.records import SamplingParams, Spec
from spsbench.drafters.registry import DRAFTERS, POLICIES, RULES, build_rule
from spsbench.law.enumeration import Proposal, Scene, earlier_loops, proposals, worst_difference
from spsbench.testing import described, scenes

PLAIN, TWO, GREEDY = SamplingParams(), SamplingParams(top_k=2), SamplingParams(greedy=True)
LOSSLESS = [name for name, kind in RULES.items() if kind.lossless]
# V, K and sampling: every pair of extremes, as far as the drafts of one case can be counted in seconds.
CASES = ((2, 4, PLAIN), (3, 2, PLAIN), (5, 1, PLAIN), (5, 4, GREEDY))
WIDE = ((5, 4, TWO),)
MADE = {"heads", "mtp", "assistant"}  # read from files for one target: test_heads.py, test_blocks.py
COUNTING = {"ngram", "unigram", "bigram"}  # their rows are as wide as the vocabulary under any sampling
POLICY_OPTIONS = {"stop-below": "stop-below:tau=0.3", "entropy": "entropy:h=0.75"}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def situations(
    drafter: str, vocab_size: int, k: int, sampling: SamplingParams, policy: str = FIXED
) -> tuple[tuple[Scene, dict[Hashable, list[Proposal]]], ...]:
    """Scenes, each with its drafts by what the loops before made of the rule: they are enumerated once."""
    without = build_rule(Spec(MODIFIED_REJECTION)).accept
    return tuple((scene, {}) for scene in scenes(drafter, without, vocab_size, (k,), (sampling,), policy))


def proved(
    drafter: str, rule: str, cases: tuple[tuple[int, int, SamplingParams], ...], policy: str = FIXED
) -> set[int]:
    """How much less than K was drafted on the way; fails where the law is another one."""
    missing = set[int]()
    for vocab_size, k, sampling in cases:
        for situation, known in situations(drafter, vocab_size, k, sampling, policy):
            scene = replace(situation, accept=build_rule(Spec(rule)).accept)
            seen = earlier_loops(scene)
            proposed = known[seen] = known.get(seen) or list(proposals(scene))
            worst = worst_difference(scene, proposed)
            assert worst.is_none, described(worst, scene)
            assert worst.limit == 1e-12
            missing |= {k - n for n in worst.drafted} | ({-1} if 0 in worst.drafted else set())
    return missing


@pytest.mark.thorough_but("[model-modified", "[lookup-modified")
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("drafter", sorted(DRAFTERS.keys() - MADE))
def test_the_law_is_the_targets(drafter: str, rule: str) -> None:
    missing = proved(drafter, rule, CASES if drafter in COUNTING else CASES + WIDE)
    assert 0 in missing, "all of K"
    if DRAFTERS[drafter].point_mass:
        assert {-1, 1} <= missing or {-1, 2} <= missing, "none, and fewer than K"


@pytest.mark.thorough_but("[model-entropy-modified")
@pytest.mark.soak_but("pairs")
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {FIXED}))  # fixed is what stands above
@pytest.mark.parametrize("drafter", [name for name, kind in DRAFTERS.items() if kind.adaptive])
def test_the_law_is_the_targets_under_every_policy(drafter: str, policy: str, rule: str) -> None:
    proved(drafter, rule, ((3, 1, PLAIN), (3, 3, PLAIN), *WIDE), POLICY_OPTIONS.get(policy, policy))


def test_drafts_of_another_loop_give_a_wrong_law() -> None:
    """What is enumerated once for all rules is what each would find, and no other loop's will do."""
    (first, _), _, (later, _) = situations("model", 3, 2, PLAIN)
    assert later.before
    assert earlier_loops(later) != earlier_loops(first) == ()
    assert worst_difference(later, proposals(later)) == worst_difference(later)
    assert not worst_difference(later, proposals(first)).is_none


def test_the_cases_reach_the_ends_of_what_is_claimed() -> None:
    assert max(v for v, *_ in CASES) == 5
    assert max(k for _, k, _ in CASES) == 4
    assert set(DRAFTERS) > COUNTING

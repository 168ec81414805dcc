"""Every policy keeps the target's law; one that withdraws a drawn token does not. In float64, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.withdrawing import Withdrawing

from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.rejection import accept_draft
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_policy
from spsbench.law.enumeration import Scene, TableModel, paths, random_rows, worst_difference

CPU = torch.device("cpu")
EXACT = 1e-12
PLAIN = SamplingParams()
POLICIES = ("fixed", "stop-below", "stop-below:tau=1", "entropy:h=0.75", "momentum")
SAMPLINGS = (PLAIN, SamplingParams(top_k=2), SamplingParams(temperature=0.8, top_p=0.8))


def subject(
    policy: str,
    vocab_size: int,
    k: int,
    sampling: SamplingParams = PLAIN,
    made_by: type[ModelDrafter] = ModelDrafter,
) -> Scene:
    target, draft = (TableModel(random_rows(vocab_size, seed, 1.5), vocab_size) for seed in (1, 2))

    def make() -> ModelDrafter:
        return made_by(draft, sampling, CPU, build_policy(Spec.parse(policy)))

    return Scene(target, make, accept_draft, (0,), k, sampling)


def error(scene: Scene) -> float:
    return worst_difference(scene).size


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("sampling", [*SAMPLINGS, SamplingParams(greedy=True)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("vocab_size", "k"), [(2, 4), (3, 3), (4, 2)])
def test_law_is_the_targets(vocab_size: int, k: int, policy: str, sampling: SamplingParams) -> None:
    assert error(subject(policy, vocab_size, k, sampling)) < EXACT


@pytest.mark.thorough_but("stop-below")
@pytest.mark.parametrize("policy", POLICIES[1:])  # the first learns nothing
def test_law_is_the_targets_behind_every_loop_that_it_may_have_learnt_from(policy: str) -> None:
    """Behind each path of the first loop: so the law of both together is the target's, too."""
    first = subject(policy, 2, 3)
    for path in paths(first):
        assert error(replace(first, before=(path.numbers,))) < EXACT


@pytest.mark.parametrize("policy", ["stop-below", "entropy:h=0.75"])
def test_law_is_the_targets_where_drafts_end_anywhere(policy: str) -> None:
    worst = worst_difference(subject(policy, 4, 4))
    assert worst.size < EXACT
    assert worst.drafted >= {2, 3, 4}


@pytest.mark.parametrize(
    "sampling", [PLAIN, SamplingParams(top_k=2), SamplingParams(temperature=1.5)], ids=str
)
def test_a_withdrawn_token_changes_the_law(sampling: SamplingParams) -> None:
    wrong = subject("stop-below", 3, 3, sampling, Withdrawing)
    assert 0 in worst_difference(wrong).drafted
    assert error(wrong) > 1e-3


def test_what_the_row_alone_decides_may_be_withdrawn() -> None:
    """The bias comes of looking at the token: an entropy is known before anything is drawn."""
    assert error(subject("entropy:h=0.75", 3, 3, made_by=Withdrawing)) < EXACT

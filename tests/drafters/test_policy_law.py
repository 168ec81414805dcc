"""Every policy keeps the target's law; one that withdraws a drawn token does not. In float64, exactly."""

from __future__ import annotations

import pytest
import torch
from enumerated_loops import Enumerated
from withdrawing import Withdrawing

from spsbench.decode.table import TableModel, random_rows
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.policy import build_policy
from spsbench.records import SamplingParams, Spec

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
) -> Enumerated:
    target, draft = (TableModel(random_rows(vocab_size, seed, 1.5), vocab_size) for seed in (1, 2))

    def drafter(model: TableModel, of: SamplingParams) -> ModelDrafter:
        return made_by(model, of, CPU, build_policy(Spec.parse(policy)))

    return Enumerated(target, draft, drafter, (0,), k, sampling)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, SamplingParams(greedy=True)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("vocab_size", "k"), [(2, 4), (3, 3), (4, 2)])
def test_law_is_the_targets(vocab_size: int, k: int, policy: str, sampling: SamplingParams) -> None:
    assert subject(policy, vocab_size, k, sampling).error(loops=1) < EXACT


@pytest.mark.parametrize("policy", POLICIES)
def test_law_is_the_targets_over_loops_that_learn_from_each_other(policy: str) -> None:
    assert subject(policy, 2, 3).error(loops=2) < EXACT


@pytest.mark.parametrize("policy", ["stop-below", "entropy:h=0.75"])
def test_law_is_the_targets_at_vocabulary_4_and_k_4(policy: str) -> None:
    assert subject(policy, 4, 4).error(loops=1) < EXACT


@pytest.mark.parametrize("policy", ["stop-below", "entropy:h=0.75"])
def test_drafts_do_end_early_in_these_tables(policy: str) -> None:
    assert {len(tokens) for tokens in subject(policy, 4, 4).drafts((), ())} >= {2, 3, 4}


@pytest.mark.parametrize(
    "sampling", [PLAIN, SamplingParams(top_k=2), SamplingParams(temperature=1.5)], ids=str
)
def test_a_withdrawn_token_changes_the_law(sampling: SamplingParams) -> None:
    wrong = subject("stop-below", 3, 3, sampling, Withdrawing)
    assert min(map(len, wrong.drafts((), ()))) == 0
    assert wrong.error(loops=1) > 1e-3


def test_what_the_row_alone_decides_may_be_withdrawn() -> None:
    """The bias comes of looking at the token: an entropy is known before anything is drawn."""
    assert subject("entropy:h=0.75", 3, 3, made_by=Withdrawing).error(loops=1) < EXACT

"""The second warper agrees with the first, and says what rounding leaves open."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from spsbench.base.records import Processing, SamplingParams
from spsbench.decode import sampling as sampling_module
from spsbench.decode.sampling import warp
from spsbench.law.rederive import own_law

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(greedy=True),
    SamplingParams(temperature=0.6, top_p=0.8),
    SamplingParams(top_k=5),
    SamplingParams(temperature=1.7, top_k=12, top_p=0.9),
]
SLACK = 1e-5


def rows(*values: list[float]) -> Tensor:
    """Logits of given probabilities."""
    return torch.tensor(values, dtype=torch.float64).log()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_it_is_the_law_that_is_sampled(sampling: SamplingParams) -> None:
    logits = 3 * torch.randn(300, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    law = own_law(logits, sampling, SLACK)
    expected = warp(logits, sampling)
    settled = ~law.doubtful.any(-1)
    assert settled.sum() > 280
    assert torch.equal(law.probs[settled] > 0, expected[settled] > 0)
    assert torch.allclose(law.probs[settled], expected[settled], atol=1e-12)
    assert torch.allclose(law.probs.sum(-1), torch.ones(300, dtype=torch.float64))


@pytest.mark.parametrize("convention", sampling_module.ORDERS)
def test_the_cuts_of_a_convention_are_made_a_second_time(
    convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by the sampler, which here cuts nothing."""
    logits = 2 * torch.randn(40, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[0, :9], logits[1, 4:] = 1.0, -torch.inf
    every = product(
        (0.5, 1.7), (0, 5), (1.0, 0.8), (0.0, 0.1), (1.0,) if convention == "vllm" else (1.0, 0.6)
    )
    samplings = [
        SamplingParams(t, k, p, process=Processing(min_p=least, typical_p=mass, convention=convention))
        for t, k, p, least, mass in every
    ]
    expected = [warp(logits, each) for each in samplings]
    monkeypatch.setattr(sampling_module, "_in_order", lambda logits, *_: logits.softmax(-1))
    for each, rows in zip(samplings, expected, strict=True):
        assert torch.allclose(own_law(logits, each, 1e-10).probs, rows, atol=1e-12)


def test_ties_at_the_edges_are_kept() -> None:
    logits = rows([0.4, 0.2, 0.2, 0.2])
    for sampling in (SamplingParams(top_p=0.5), SamplingParams(top_k=2)):
        assert torch.allclose(own_law(logits, sampling, SLACK).probs[0], logits.exp()[0])


@pytest.mark.parametrize(
    ("sampling", "probs", "doubtful"),
    [
        (SamplingParams(top_p=0.8), [0.5, 0.3 + 1e-7, 0.2 - 1e-7], [False, False, True]),
        (SamplingParams(top_p=0.8), [0.5, 0.31, 0.19], [False, False, False]),
        (SamplingParams(top_p=0.6), [0.5, 0.25 + 1e-7, 0.25 - 1e-7], [False, True, True]),
        (SamplingParams(top_k=2), [0.5, 0.25 + 1e-7, 0.25 - 1e-7], [False, True, True]),
        (SamplingParams(top_k=1), [0.5, 0.25 + 1e-7, 0.25 - 1e-7], [False, False, False]),
        (SamplingParams(greedy=True), [0.4 + 1e-7, 0.2, 0.4 - 1e-7], [True, False, True]),
        (SamplingParams(greedy=True), [0.5, 0.1, 0.4], [False, False, False]),
    ],
)
def test_a_token_at_an_edge_is_doubtful(
    sampling: SamplingParams, probs: list[float], doubtful: list[bool]
) -> None:
    law = own_law(rows(probs), sampling, SLACK)
    assert law.doubtful[0].tolist() == doubtful


def test_what_is_open_widens_the_tolerance() -> None:
    sampling = SamplingParams(top_p=0.8)
    law = own_law(rows([0.5, 0.3 + 1e-7, 0.2 - 1e-7], [0.5, 0.31, 0.19]), sampling, SLACK)
    assert law.tolerance[0] > 0.2 > 1e-3 > law.tolerance[1] > 0


def test_masked_logits_do_not_stretch_the_unit() -> None:
    logits = torch.tensor([[1.0, 0.5, float("-inf")], [1.0, 0.5, -1e30]])
    law = own_law(logits, SamplingParams(), SLACK)
    assert law.tolerance.max() < 1e-2
    assert torch.allclose(law.probs[0], law.probs[1])

"""The sums are centred under the target, find a planted leakage, and never bet against the truth."""

from __future__ import annotations

import math

import pytest
import torch

from spsbench.core.evidence import BINS, MIXTURES, POWERS, evidence
from spsbench.core.sampling import draw, warp
from spsbench.records import SamplingParams

N, V = 20_000, 50


def rows(seed: int, top_p: float = 0.9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, V, generator=generator) * 2
    noise = torch.randn(N, V, generator=generator)
    params = SamplingParams(top_p=top_p)
    return warp(logits, params), warp(logits + noise, params)


def sample(q: torch.Tensor, p: torch.Tensor, leakage: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = draw((1 - leakage) * q + leakage * p, torch.rand(N, generator=generator))
    return tokens, torch.rand(N, generator=generator)


def test_the_truth_is_centred() -> None:
    """Four standard errors for each of two z-scores and ten cells: false alarm below 1 in 1,000."""
    q, p = rows(1)
    tokens, v = sample(q, p, 0.0, 2)
    sums = evidence(tokens, q, p, v)
    assert sums["impossible"] == 0
    assert abs(sums["log_score"]) < 4 * math.sqrt(sums["log_score_var"])
    assert abs(sums["leak_score"]) < 4 * math.sqrt(sums["leak_var"])
    expected = sums["positions"] / BINS
    for i in range(BINS):
        assert abs(sums[f"transform_{i}"] - expected) < 4.5 * math.sqrt(expected)
    for name in [*(f"log_e_power_{x}" for x in POWERS), *(f"log_e_mixture_{x}" for x in MIXTURES)]:
        assert sums[name] < math.log(1000)


@pytest.mark.parametrize("leakage", [0.05, 0.2])
def test_a_planted_leakage_is_measured(leakage: float) -> None:
    q, p = rows(3, top_p=1.0)
    tokens, v = sample(q, p, leakage, 4)
    sums = evidence(tokens, q, p, v)
    estimate = sums["leak_score"] / sums["leak_information"]
    error = math.sqrt(sums["leak_var"]) / sums["leak_information"]
    assert estimate == pytest.approx(leakage, abs=5 * error)
    assert estimate > 3 * error
    assert max(sums[f"log_e_mixture_{x}"] for x in MIXTURES) > math.log(1000)


def test_a_sharper_sampler_is_noticed_without_a_draft() -> None:
    q, p = rows(5, top_p=1.0)
    tokens, v = sample(q.pow(1.2) / q.pow(1.2).sum(-1, keepdim=True), p, 0.0, 6)
    sums = evidence(tokens, q, None, v)
    assert sums["log_score"] > 4 * math.sqrt(sums["log_score_var"])
    assert sums["log_e_power_1.25"] > math.log(1000)


def test_impossible_tokens_are_counted_and_certain_rows_are_left_out() -> None:
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    sums = evidence(torch.tensor([0, 0, 1]), q, torch.zeros(3, 2), torch.rand(3))
    assert sums["positions"] == 1
    assert sums["impossible"] == 1
    assert sums["drafted_positions"] == 0


def test_overlap_counts_certain_rows_and_leaves_undrafted_ones_out() -> None:
    q = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    p = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.0, 0.0]])
    sums = evidence(torch.tensor([0, 0, 1]), q, p, torch.rand(3))
    assert (sums["overlap"], sums["overlap_positions"]) == (1.25, 2)
    assert sums["drafted_positions"] == 1


def test_every_e_value_has_expectation_one_at_most() -> None:
    """Exactly, by summing over the vocabulary of one row instead of sampling."""
    q, p = (x[:1].double() for x in rows(7))
    for name in [*(f"log_e_power_{x}" for x in POWERS), *(f"log_e_mixture_{x}" for x in MIXTURES)]:
        mean = sum(
            float(q[0, x]) * math.exp(evidence(torch.tensor([x]), q, p, torch.rand(1))[name])
            for x in range(V)
            if q[0, x] > 0
        )
        assert mean <= 1 + 1e-9

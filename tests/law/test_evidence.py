"""The sums are centred under the target, find a planted leakage, and never bet against the truth."""

from __future__ import annotations

import math

import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import draw, warp
from spsbench.law.evidence import BINS, MIXTURES, POWERS, sums_of

N, V = 20_000, 50


def rows(seed: int, top_p: float = 0.9, sharpness: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, V, generator=generator) * sharpness
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
    sums = sums_of(tokens, q, p, v)
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
    sums = sums_of(tokens, q, p, v)
    estimate = sums["leak_score"] / sums["leak_information"]
    error = math.sqrt(sums["leak_var"]) / sums["leak_information"]
    assert estimate == pytest.approx(leakage, abs=5 * error)
    assert estimate > 3 * error
    assert max(sums[f"log_e_mixture_{x}"] for x in MIXTURES) > math.log(1000)


def test_a_sharper_sampler_is_noticed_without_a_draft() -> None:
    q, p = rows(5, top_p=1.0)
    tokens, v = sample(q.pow(1.2) / q.pow(1.2).sum(-1, keepdim=True), p, 0.0, 6)
    sums = sums_of(tokens, q, None, v)
    assert sums["log_score"] > 4 * math.sqrt(sums["log_score_var"])
    assert sums["log_e_power_1.25"] > math.log(1000)


def test_impossible_tokens_are_counted_and_certain_rows_are_left_out() -> None:
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    sums = sums_of(torch.tensor([0, 0, 1]), q, torch.zeros(3, 2), torch.rand(3))
    assert sums["positions"] == 1
    assert sums["impossible"] == 1
    assert sums["drafted_positions"] == 0


def test_overlap_counts_certain_rows_and_leaves_undrafted_ones_out() -> None:
    q = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    p = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.0, 0.0]])
    sums = sums_of(torch.tensor([0, 0, 1]), q, p, torch.rand(3))
    assert (sums["overlap"], sums["overlap_positions"]) == (1.25, 2)
    assert sums["drafted_positions"] == 1


def test_a_certain_row_tells_of_leakage_without_a_variance() -> None:
    """q = (1, 0), p = (1/4, 3/4): the scores are -3/5 and 1, and -3/5 is the mean under q."""
    q, p = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    kept, leaked = (sums_of(torch.tensor([token]), q, p, torch.rand(1)) for token in (0, 1))
    names = ("leak_all_score", "leak_all_information", "leak_all_var")
    assert [kept[name] for name in names] == pytest.approx([0.0, 1.2, 0.0])
    assert [leaked[name] for name in names] == pytest.approx([1.6, 1.2, 0.0])
    for sums in (kept, leaked):
        assert sums["leak_information"] == sums["drafted_positions"] == 0
        assert all(sums[f"log_e_mixture_{x}"] == 0 for x in MIXTURES)


@pytest.mark.parametrize("leakage", [0.0, 0.05])
def test_leakage_over_all_rows_is_measured_with_a_smaller_error(leakage: float) -> None:
    """Sharp rows, most of which leave one token; 4 standard errors under the planted share."""
    q, p = rows(8, top_p=0.6, sharpness=8.0)
    tokens, v = sample(q, p, leakage, 9)
    sums = sums_of(tokens, q, p, v)
    assert (sums["impossible"] > 0) == (leakage > 0)
    information, variance = sums["leak_all_information"], sums["leak_all_var"]
    assert information > 1.5 * sums["leak_information"]
    if leakage == 0:  # else rows with an impossible token are in one of the two alone
        assert variance == pytest.approx(sums["leak_var"])
    most = variance + 2 * leakage * (information - variance)
    assert abs(sums["leak_all_score"] - leakage * information) < 4 * math.sqrt(most)


@pytest.mark.parametrize("bet", [*(f"mixture_{share}" for share in MIXTURES), "no_residual"])
def test_nothing_is_staked_on_tokens_that_the_target_lacks(bet: str) -> None:
    """Exactly: expectation 1 over the target's tokens, although the draft has mass outside."""
    whole, drafted = rows(10, top_p=0.6)
    telling = ((whole > 0).sum(-1) > 3) & (torch.where(whole > 0, 0.0, drafted).sum(-1) > 0.05)
    q, p = (x[telling][:1].double() for x in (whole, drafted))
    q, p = q / q.sum(), p / p.sum()
    tokens = [x for x in range(V) if q[0, x] > 0]
    logs = [sums_of(torch.tensor([x]), q, p, torch.rand(1))[f"log_e_{bet}"] for x in tokens]
    mean = sum(float(q[0, x]) * math.exp(log) for x, log in zip(tokens, logs, strict=True))
    assert mean == pytest.approx(1.0, abs=1e-12)


def test_a_missing_residual_is_found_by_its_bet() -> None:
    """500 positions of a sampler that corrects from the target; the truth of as many raises no alarm."""
    q, p = rows(11, top_p=1.0)
    accepted = torch.minimum(p, q)
    wrong = accepted + (1 - accepted.sum(-1, keepdim=True)) * q
    found = {}
    for name, law in (("wrong", wrong), ("right", q)):
        tokens, v = sample(law, law, 0.0, 12)
        found[name] = sums_of(tokens[:500], q[:500], p[:500], v[:500])["log_e_no_residual"]
    assert found["wrong"] > math.log(1000)
    assert found["right"] < math.log(1000)


def test_every_e_value_has_expectation_one_at_most() -> None:
    """Exactly, by summing over the vocabulary of one row instead of sampling."""
    q, p = (x[:1].double() for x in rows(7))
    for name in [*(f"log_e_power_{x}" for x in POWERS), *(f"log_e_mixture_{x}" for x in MIXTURES)]:
        mean = sum(
            float(q[0, x]) * math.exp(sums_of(torch.tensor([x]), q, p, torch.rand(1))[name])
            for x in range(V)
            if q[0, x] > 0
        )
        assert mean <= 1 + 1e-9

"""The production warper against one that shares nothing with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from spsbench.base.records import SamplingParams
from spsbench.decode.rows import warped
from spsbench.decode.sampling import warp
from spsbench.parts.verify import controls
from spsbench.parts.verify.parts import brute_force, is_clear

EXACT, COARSE = 1e-9, 1e-4
# Few different values: ties at every edge.
TIED = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=60)
FREE = st.lists(st.floats(-30, 30), min_size=1, max_size=60)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(1.0), st.floats(0.1, 4)),
    top_k=st.one_of(st.just(0), st.integers(0, 70)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    greedy=st.booleans(),
)

Warp = Callable[[torch.Tensor, SamplingParams], torch.Tensor]


def on_host(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """As a loop on a CPU warps."""
    return warped(logits, params).dense()


both_warpers = pytest.mark.parametrize("warp", [warp, on_host])


def distance(found: torch.Tensor, logits: torch.Tensor, params: SamplingParams) -> float:
    """Total variation between a warped row and the brute-force one of [V] logits."""
    truth = torch.from_numpy(brute_force(logits.double().numpy(), params))
    return float((found.double() - truth).abs().sum()) / 2


def has_clear_edges(logits: torch.Tensor, params: SamplingParams, slack: float) -> bool:
    return is_clear(logits.double().numpy(), params, slack)


@both_warpers
@given(st.one_of(TIED, FREE), PARAMS)
def test_both_warpers_agree_in_float64(warp: Warp, logits: list[float], params: SamplingParams) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    assume(has_clear_edges(row, params, EXACT))
    assert distance(warp(row.unsqueeze(0), params)[0], row, params) < 1e-12


@both_warpers
@given(TIED, PARAMS)
def test_a_row_among_others_is_warped_as_alone(
    warp: Warp, logits: list[float], params: SamplingParams
) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    assume(has_clear_edges(row, params, EXACT))
    rows = torch.stack([row.flip(0), row, torch.zeros_like(row)])
    assert distance(warp(rows, params)[1], row, params) < 1e-12


@both_warpers
@given(st.one_of(TIED, FREE), PARAMS, st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_both_warpers_agree_on_coarse_logits(
    warp: Warp, logits: list[float], params: SamplingParams, dtype: torch.dtype
) -> None:
    row = torch.tensor(logits).to(dtype)
    assume(has_clear_edges(row, params, COARSE))
    assert distance(warp(row.unsqueeze(0), params)[0], row, params) < 1e-5


@both_warpers
@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0, 12.0], ids=["flat", "nearly flat", "usual", "peaked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_warpers_agree_on_a_large_vocabulary(warp: Warp, scale: float, dtype: torch.dtype) -> None:
    """Nuclei from one token to thousands; bfloat16 makes thousands of ties."""
    generator = torch.Generator().manual_seed(7)
    rows = (torch.randn(3, 30_000, generator=generator) * scale).to(dtype)
    compared = 0
    for params in (
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.6, top_p=0.95),
        SamplingParams(temperature=1.8, top_k=50),
        SamplingParams(temperature=1.8, top_k=400, top_p=0.6),
        SamplingParams(greedy=True),
    ):
        warped = warp(rows, params)
        for row, found in zip(rows, warped, strict=True):
            if has_clear_edges(row, params, 1e-6):
                compared += 1
                assert distance(found, row, params) < 1e-4
    assert compared >= 9  # among so many tokens an edge is sometimes too close to call


def test_hand_made_rows() -> None:
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    assert brute_force(logits, SamplingParams(top_p=0.7)).tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert brute_force(logits, SamplingParams(top_k=3)).tolist() == pytest.approx([5 / 9, 5 / 18, 1 / 6, 0])
    assert brute_force(logits, SamplingParams(greedy=True)).tolist() == [1, 0, 0, 0]
    # The nucleus is that of the three tokens that top-k leaves: 5/9 alone is enough for .55.
    both = SamplingParams(top_k=3, top_p=0.55)
    assert brute_force(logits, both).tolist() == [1, 0, 0, 0]
    # At T = 2 the first two hold less than .7.
    hot = brute_force(logits, SamplingParams(temperature=2.0, top_p=0.7))
    assert int((hot > 0).sum()) == 3
    assert brute_force([1.0, 1.0, 1.0, 0.0], SamplingParams(top_k=1)).tolist() == pytest.approx(
        [1 / 3] * 3 + [0]
    )


def test_an_edge_within_rounding_is_not_clear() -> None:
    logits = np.log([0.5, 0.25, 0.25 - 1e-8, 1e-8])
    assert not is_clear(logits, SamplingParams(top_p=0.5), 1e-6)  # the first token is .5 but for rounding
    assert not is_clear(logits, SamplingParams(top_p=0.6), 1e-6)  # the second and third are nearly tied
    assert not is_clear(logits, SamplingParams(top_k=2), 1e-6)
    assert is_clear(logits, SamplingParams(top_k=3, top_p=0.9), 1e-6)
    assert is_clear(logits, SamplingParams(), 1e-6)


@pytest.mark.parametrize(
    ("wrong", "params"),
    [
        (controls._nucleus_at_one, SamplingParams(temperature=2.0, top_p=0.7)),
        (controls._nucleus_before_top_k, SamplingParams(top_k=3, top_p=0.55)),
    ],
    ids=["nucleus at T = 1", "nucleus before top-k"],
)
def test_a_wrong_order_of_the_stages_is_told_apart(wrong: object, params: SamplingParams) -> None:
    assert callable(wrong)
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]], dtype=torch.float64).log()
    assert distance(warp(logits, params)[0], logits[0], params) < 1e-12
    assert distance(wrong(logits, params)[0], logits[0], params) > 0.1
    # Where its stage does nothing the fault is none.
    plain = replace(params, temperature=1.0, top_k=0)
    assert distance(wrong(logits, plain)[0], logits[0], plain) < 1e-12

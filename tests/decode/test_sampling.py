"""The warper and the inverse-CDF draw against what they promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import kstest

from spsbench.decode.rows import warped
from spsbench.decode.sampling import draw, warp
from spsbench.records import SamplingParams

LOGITS = st.lists(st.floats(-8, 8), min_size=2, max_size=40)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.05, 1),
    greedy=st.booleans(),
)


@given(LOGITS, PARAMS)
def test_warped_rows_are_distributions_on_the_most_probable_tokens(
    logits: list[float], params: SamplingParams
) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    probs = warp(row, params)[0]
    assert float(probs.sum()) == pytest.approx(1)
    assert bool((probs >= 0).all())
    kept = row[0][probs > 0]
    dropped = row[0][probs == 0]
    # Logits closer than rounding may become equal probabilities, which are kept together.
    assert len(dropped) == 0 or float(kept.min()) >= float(dropped.max())


@given(LOGITS, st.floats(0.05, 0.99))
def test_the_nucleus_is_the_smallest_set_that_reaches_its_mass(logits: list[float], top_p: float) -> None:
    plain = torch.tensor(logits, dtype=torch.float64).softmax(-1)
    probs = warp(torch.tensor([logits], dtype=torch.float64), SamplingParams(top_p=top_p))[0]
    inside = plain[probs > 0]
    edge = inside.min()
    assert float(inside.sum()) >= top_p - 1e-9
    assert float(inside[inside > edge].sum()) < top_p + 1e-9


def test_hand_made_rows() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    assert warp(logits, SamplingParams(top_p=0.7))[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert warp(logits, SamplingParams(top_k=3))[0].tolist() == pytest.approx([5 / 9, 5 / 18, 1 / 6, 0])
    assert warp(logits, SamplingParams(greedy=True))[0].tolist() == [1, 0, 0, 0]
    squared = [0.25, 0.0625, 0.0225, 0.01]
    expected = [x / sum(squared) for x in squared]
    assert warp(logits, SamplingParams(temperature=0.5))[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("tokens", [2, 40])
def test_the_nucleus_has_no_slack(tokens: int) -> None:
    """So many tokens reach .949: the next belongs to a nucleus of .95; the longer one is past the head."""
    likely = torch.linspace(1.1, 0.9, tokens, dtype=torch.float64) * 0.949 / tokens
    logits = torch.cat([likely, torch.tensor([0.02, 0.016, 0.015], dtype=torch.float64)]).log()[None]
    for row in (warp(logits, SamplingParams(top_p=0.95)), warped(logits, SamplingParams(top_p=0.95)).dense()):
        assert int((row > 0).sum()) == tokens + 1


def test_ties_at_the_edge_are_kept_together() -> None:
    logits = torch.zeros(1, 6)
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.3)):
        assert warp(logits, params)[0].tolist() == pytest.approx([1 / 6] * 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [2, 31, 65, 600, 5000])
def test_the_fast_warper_is_the_definition_to_the_bit(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    # From a flat row, whose nucleus reaches past any head, to peaked ones; ties everywhere.
    logits = torch.randn(9, size, generator=generator, dtype=torch.float64) * torch.arange(9).unsqueeze(1)
    logits = ((logits * 2).round() / 2).to(dtype)
    for params in (SamplingParams(top_p=0.95), SamplingParams(temperature=0.7, top_k=20, top_p=0.8)):
        assert torch.equal(warp(logits, params), torch.cat([warp(row, params) for row in logits.split(1)]))
        assert torch.equal(warp(logits, params), warped(logits, params).dense())


def test_half_precision_is_widened() -> None:
    assert warp(torch.zeros(1, 4, dtype=torch.bfloat16), SamplingParams()).dtype == torch.float32


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda p: sum(p) > 1e-3), st.floats(0, 1))
@example(probs=[1.0, 0.0], u=1.0)
def test_a_token_of_probability_zero_is_never_drawn(probs: list[float], u: float) -> None:
    row, below_one = torch.tensor(probs), 1 - 2**-24
    for number in (min(u, below_one), 0.0, below_one):
        token = int(draw(row, torch.tensor(number)))
        assert 0 <= token < len(probs)
        assert probs[token] > 0


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64).expand(5, 4)
    u = torch.tensor([0.0, 0.19, 0.2, 0.69, 0.71], dtype=torch.float64)
    assert draw(probs, u).tolist() == [0, 0, 2, 2, 3]


def test_draw_is_uniform_over_the_distribution() -> None:
    """Kolmogorov-Smirnov on u mapped through the law; false alarm once in 1,000."""
    generator = torch.Generator().manual_seed(3)
    probs = torch.rand(50, generator=generator, dtype=torch.float64)
    u = torch.rand(20000, generator=generator, dtype=torch.float64)
    tokens = draw(probs.expand(20000, 50), u)
    cumulative = (probs / probs.sum()).cumsum(0)
    below = cumulative[tokens] - (probs / probs.sum())[tokens]
    v = torch.rand(20000, generator=generator, dtype=torch.float64)
    assert kstest((below + v * (probs / probs.sum())[tokens]).numpy(), "uniform").pvalue > 1e-3

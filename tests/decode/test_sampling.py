"""The warper and the inverse-CDF draw against what they promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import kstest
from support.fixed_shapes import Log

from spsbench.base.records import SamplingParams
from spsbench.decode import sampling
from spsbench.decode.rows import warped
from spsbench.decode.sampling import draw, edge_by_digits, edge_by_sorting, edge_of_largest, warp

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


def sorted_nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """The definition, written once more: sort, add up in float64, and what ties with the crossing token."""
    falling = probs.sort(-1, descending=True).values
    mass = falling.cumsum(-1, dtype=torch.float64)
    wanted = mass.new_full((len(probs), 1), top_p)
    edge = falling.gather(-1, torch.searchsorted(mass, wanted).clamp_(max=probs.shape[-1] - 1))
    inside = probs >= edge
    total = mass.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_(min=0))
    return torch.where(inside, probs, 0.0) / total.float()


def same_rows(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the bit, NaN where the other has one."""
    return torch.equal(one.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0))


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are warped as on an accelerator."""
    monkeypatch.setattr(sampling, "_sorts", lambda probs: False)


COARSE = st.one_of(
    st.integers(-12, 12).map(lambda n: n / 4),
    st.floats(-100, 100, width=16),
    st.sampled_from([float("-inf"), -300.0, 3e38, float("nan")]),
)


@given(
    st.lists(COARSE, min_size=1, max_size=80),
    st.one_of(st.floats(0.01, 0.999999), st.sampled_from([0.125, 0.25, 0.5, 0.75])),
    st.sampled_from([0, 1, 3, 20]),
    st.sampled_from([1.0, 0.6]),
)
@example(logits=[0.0] * 64, top_p=0.5, top_k=0, temperature=1.0)
@example(logits=[float("-inf")] * 3, top_p=0.5, top_k=0, temperature=1.0)
@example(logits=[5.0, float("inf")], top_p=0.5, top_k=1, temperature=1.0)
@example(logits=[0.0, -103.5, -200.0], top_p=0.9999999, top_k=0, temperature=1.0)
def test_a_nucleus_without_a_sort_is_the_definition_to_the_bit(
    logits: list[float], top_p: float, top_k: int, temperature: float
) -> None:
    rows = torch.tensor([logits, logits[::-1]])
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = warp(rows, params)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampling, "_sorts", lambda probs: False)
        assert same_rows(warp(rows, params), expected)
    if not top_k:
        assert same_rows(expected, sorted_nucleus((rows / temperature).softmax(-1), top_p))


@pytest.mark.parametrize("size", [1, 2, 257, 151_936])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 4.0, 30.0])
@pytest.mark.usefixtures("on_device")
def test_nuclei_of_any_width_are_found_without_a_sort(size: int, scale: float) -> None:
    """From one-hot to flat rows; coarse logits as of bfloat16, with ties everywhere, and fine ones."""
    fine = scale * torch.randn(2, size, generator=torch.Generator().manual_seed(size))
    for logits in (fine, fine.bfloat16()):
        probs = logits.float().softmax(-1)
        for top_p in (0.3, 0.95, 0.9999):
            assert same_rows(warp(logits, SamplingParams(top_p=top_p)), sorted_nucleus(probs, top_p))
            if top_k := min(20, size - 1):
                cut = logits.float().masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
                found = warp(logits, SamplingParams(top_p=top_p, top_k=top_k))
                assert same_rows(found, sorted_nucleus(cut.softmax(-1), top_p))


def test_many_rows_are_done_in_parts() -> None:
    probs = (2 * torch.randn(37, 300, generator=torch.Generator().manual_seed(4))).softmax(-1)
    for found, expected in zip(edge_by_digits(probs, 0.9), edge_by_sorting(probs, 0.9), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


def test_nothing_is_sorted_on_a_device(on_device: None) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    for params in (SamplingParams(top_p=0.9), SamplingParams(top_p=0.9, top_k=7)):
        with Log() as log:
            warp(logits, params)
        named = [entry[0] for entry in log.seen]
        assert not any("sort.default" in name or "sort.stable" in name for name in named)
        assert not any("_local_scalar_dense" in name or "nonzero" in name for name in named)


def test_an_edge_without_a_sort_has_the_masses_of_the_definition() -> None:
    """Ties at the edge, behind the most probable k too, are all inside and all counted."""
    probs = torch.tensor(
        [[0.25, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125], [0.4, 0.3, 0.1, 0.1, 0.1, 0.0, 0.0]]
    )
    for top_p in (0.2, 0.3, 0.5, 0.99):
        edge, mass = edge_by_sorting(probs, top_p)
        for found in (edge_by_digits(probs, top_p), edge_of_largest(probs, probs.topk(3).indices, top_p)):
            assert torch.equal(found[0], edge)
            torch.testing.assert_close(found[1], mass, rtol=1e-15, atol=0)


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

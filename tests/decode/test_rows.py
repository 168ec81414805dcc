"""Rows held by their support say what the tensors say: the same law, the same draws, the same verdicts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from spsbench.base.records import SamplingParams
from spsbench.decode import rows as loop_rows
from spsbench.decode.rejection import Draft, accept_draft, acceptance_probability, judged
from spsbench.decode.rows import HostRow, HostRows, TensorRows, as_in_a_loop, joined, takes_rows, warped
from spsbench.decode.sampling import draw, warp
from spsbench.drafters.policy import Entropy, StopBelow
from spsbench.parts.verify.parts import is_clear

F64 = torch.float64
# Few different values: ties at every edge. Minus infinity: tokens that a model rules out.
LOGIT = st.one_of(st.integers(-6, 6).map(lambda n: n / 2), st.floats(-30, 30), st.just(float("-inf")))
PARAMS = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(1.0), st.floats(0.1, 4)),
    top_k=st.one_of(st.just(0), st.integers(0, 40)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    greedy=st.booleans(),
)
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)


@st.composite
def logit_rows(choose: st.DrawFn) -> torch.Tensor:
    """[n, V] in float64, each row with a token that is possible."""
    n, size = choose(st.integers(1, 4)), choose(st.integers(1, 40))
    row = st.lists(LOGIT, min_size=size, max_size=size).filter(lambda row: max(row) > float("-inf"))
    return torch.tensor([choose(row) for _ in range(n)], dtype=F64)


def clear(logits: torch.Tensor, params: SamplingParams, slack: float) -> bool:
    return all(is_clear(row.double().numpy(), params, slack) for row in logits)


@given(logit_rows(), PARAMS)
def test_the_support_is_the_warpers_token_for_token(logits: torch.Tensor, params: SamplingParams) -> None:
    assume(clear(logits, params, 1e-12))
    found, expected = warped(logits, params).dense(), warp(logits, params)
    assert found.dtype == F64
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@given(logit_rows(), PARAMS, st.sampled_from([torch.float32, torch.bfloat16]))
def test_lower_precision_agrees_within_rounding(
    logits: torch.Tensor, params: SamplingParams, dtype: torch.dtype
) -> None:
    coarse = logits.to(dtype)
    assume(clear(coarse, params, 1e-5))
    found = warped(coarse, params).dense()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, warp(coarse, params), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_a_nucleus_of_any_width_is_found(scale: float, dtype: torch.dtype) -> None:
    """From all of 20,000 tokens, none of which is above the first share that is tried, to one."""
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(3, 20_000, generator=generator, dtype=F64) * scale).to(dtype)
    for params in (
        NUCLEUS,
        SamplingParams(top_p=0.3),
        SamplingParams(top_k=300, top_p=0.9),
        SamplingParams(),
    ):
        found, expected = warped(logits, params).dense(), warp(logits, params)
        assert int(((found > 0) != (expected > 0)).sum()) <= (0 if dtype == F64 else 3)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_ties_at_the_edge_stay_in_among_tokens_of_any_probability() -> None:
    logits = torch.zeros(1, 5000, dtype=F64)
    logits[0, 7] = 3.0
    held = warped(logits, SamplingParams(top_p=0.5))
    assert int((held.dense() > 0).sum()) == 5000
    assert float(held.dense().sum()) == pytest.approx(1)


def test_one_token_and_one_row() -> None:
    for params in (NUCLEUS, SamplingParams(), SamplingParams(greedy=True), SamplingParams(top_k=1)):
        held = warped(torch.tensor([[-3.0]]), params)
        assert held.dense().tolist() == [[1.0]]
        assert held.draw(torch.tensor([0.99])).tolist() == [0]


def test_a_row_takes_no_more_than_its_nucleus_and_no_view_of_the_logits() -> None:
    logits = torch.linspace(0, 40, 50_000).unsqueeze(0)
    held = warped(logits, NUCLEUS)
    assert held.nbytes < 500_000 < held.dense_nbytes * 3
    before = [warped(logits, params).dense().clone() for params in (NUCLEUS, SamplingParams())]
    held = [warped(logits, params) for params in (NUCLEUS, SamplingParams())]
    logits.zero_()
    assert all(torch.equal(rows.dense(), old) for rows, old in zip(held, before, strict=True))


BROKEN = {
    "nan": [0.0, float("nan"), 1.0],
    "infinity": [0.0, float("inf"), 1.0],
    "two infinities": [float("inf"), float("inf"), 1.0],
    "nothing possible": [float("-inf")] * 3,
}


@pytest.mark.parametrize("logits", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize(
    "params",
    [NUCLEUS, SamplingParams(), SamplingParams(top_k=2), SamplingParams(greedy=True)],
    ids=["nucleus", "plain", "top-k", "greedy"],
)
def test_a_broken_row_is_seen_as_one_and_draws_some_token(
    logits: list[float], params: SamplingParams
) -> None:
    broken = torch.tensor([logits, [0.0, 0.0, 5.0]])
    held = warped(broken, params)
    assert bool(held.dense()[0].isnan().any()) == bool(warp(broken, params)[0].isnan().any())
    assert held.is_finite() == bool(warp(broken, params).isfinite().all())
    assert bool(held.dense()[1].isfinite().all())
    draft = Draft(held.draw(torch.tensor([0.5, 0.5])), held)
    assert all(0 <= token < 3 for token in draft.tokens.tolist())
    target = warped(torch.tensor([logits, logits, logits]), params)
    for u in (0.0, 0.99):
        assert 0 <= int(accept_draft(target, draft, torch.full((3,), u)).token) < 3


def test_logits_beyond_the_largest_number_are_no_crash() -> None:
    held = warped(torch.tensor([[3e38, 0.0]]), SamplingParams(temperature=0.1, top_p=0.9))
    assert not held.is_finite()


WEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=30).filter(lambda p: sum(p) > 1e-3)


@given(WEIGHTS, st.floats(0, 1 - 2**-53), st.integers(1, 80))
def test_draws_agree_with_those_from_a_tensor(weights: list[float], u: float, repeats: int) -> None:
    """Also where a draw first looks for a block: the weights repeated are up to 2,400."""
    probs = torch.tensor(weights * repeats, dtype=F64)
    probs /= probs.sum()
    reached = probs.cumsum(0) / probs.sum()
    assume(float((reached - u).abs().min()) > 1e-9)
    number = torch.tensor([u], dtype=F64)
    expected = draw(probs.unsqueeze(0), number).tolist()
    assert HostRows.of(probs.unsqueeze(0)).draw(number).tolist() == expected
    assert HostRows([HostRow(None, probs.numpy())], len(probs)).draw(number).tolist() == expected


@given(WEIGHTS, st.integers(1, 80), st.sampled_from([torch.float32, F64]))
def test_a_token_of_probability_zero_is_never_drawn(
    weights: list[float], repeats: int, dtype: torch.dtype
) -> None:
    probs = torch.tensor([0.0, *weights * repeats, 0.0], dtype=dtype)
    whole = HostRows([HostRow(None, probs.numpy())], len(probs))
    edges = (probs.double().cumsum(0) / probs.double().sum()).tolist()
    for u in (0.0, 1 - 2**-24, *edges[:: max(len(edges) // 50, 1)]):
        token = int(whole.draw(torch.tensor([min(u, 1 - 2**-24)], dtype=F64)))
        assert float(probs[token]) > 0


@st.composite
def situations(choose: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Target rows [K+1, V], draft rows [K, V], K tokens that they give, uniform numbers [K+1]."""
    k, size = choose(st.integers(0, 4)), choose(st.integers(1, 12))
    weight = st.one_of(st.just(0.0), st.floats(0.01, 1))
    row = st.lists(weight, min_size=size, max_size=size).filter(lambda row: sum(row) > 0)
    rows = torch.tensor([choose(row) for _ in range(2 * k + 1)], dtype=F64)
    rows /= rows.sum(-1, keepdim=True)
    number = st.floats(0, 1 - 2**-53)
    u = torch.tensor([choose(number) for _ in range(2 * k + 1)], dtype=F64)
    q, p = rows[: k + 1], rows[k + 1 :]
    if choose(st.booleans()):
        q = torch.cat([p, q[k:]])  # the draft is the target: only rounding could reject
    tokens = draw(p, u[:k]) if k else torch.empty(0, dtype=torch.int64)
    return q, p, tokens, u[k:]


@given(situations(), st.booleans())
def test_verdicts_agree_with_those_on_tensors(
    situation: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], certain: bool
) -> None:
    q, p, tokens, u = situation
    expected = accept_draft(q, Draft(tokens, None if certain else p), u)
    assume(_clear_of_edges(q, None if certain else p, tokens, u, int(expected.accepted)))
    for held in (HostRows.of(p), HostRows([HostRow(None, row) for row in p.numpy()], q.shape[-1]), p):
        draft = Draft(tokens, None if certain else held)
        for target in (HostRows.of(q), HostRows([HostRow(None, row) for row in q.numpy()], q.shape[-1]), q):
            verdict = accept_draft(target, draft, u)
            assert (int(verdict.accepted), int(verdict.token)) == (
                int(expected.accepted),
                int(expected.token),
            )


def _clear_of_edges(
    q: torch.Tensor, p: torch.Tensor | None, tokens: torch.Tensor, u: torch.Tensor, accepted: int
) -> bool:
    """Whether no number is so near a threshold that the order of a sum decides."""
    k = len(tokens)
    weights = q[accepted]
    if k:
        own = q[:k].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        told = own.new_ones(k) if p is None else p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        if float((acceptance_probability(own, told) - u[:k]).abs().min()) < 1e-9:
            return False
    if accepted < k:
        there = torch.zeros_like(weights).scatter(0, tokens[accepted : accepted + 1], 1.0)
        left = (weights - (there if p is None else p[accepted])).clamp(min=0)
        weights = left if float(left.sum()) > 1e-9 else weights
    reached = weights.cumsum(0) / weights.sum()
    return float((reached - u[-1]).abs().min()) > 1e-9


def test_an_equal_draft_is_accepted_and_an_empty_residual_is_the_target() -> None:
    logits = 4 * torch.randn(3, 2000, generator=torch.Generator().manual_seed(1))
    q = warped(logits, NUCLEUS)
    p = joined([warped(row, NUCLEUS) for row in logits[:2].split(1)])
    u = torch.full((3,), 1 - 2**-24)
    assert int(accept_draft(q, Draft(p.draw(u[:2]), p), u).accepted) == 2
    row = q[0] if isinstance(q, HostRows) else None
    assert row.without(-1) is row.weights
    lone = HostRow.of(torch.eye(4)[2].numpy())
    assert lone.without(2).tolist() == [1.0]


def test_probabilities_are_looked_up_inside_and_outside_of_the_support() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.0, 0.5], [0.2, 0.2, 0.2, 0.2, 0.2]])
    held = HostRows.of(probs)
    for row in range(2):
        assert [held.probability(row, token) for token in range(5)] == probs[row].tolist()
        tokens = torch.tensor([[4, 0][row], 3])
        assert held.at(tokens).tolist() == TensorRows(probs).at(tokens).tolist()
        for other in range(2):
            expected = probs[row] if held[other].ids is None else probs[row][probs[other] > 0]
            assert held[row].along(held[other]).tolist() == expected.tolist()


def test_a_draft_is_looked_up_along_a_wide_support() -> None:
    """Supports of 600 of 4,000 tokens that half overlap: their residual is that of the whole rows."""
    probs = torch.zeros(2, 4000)
    probs[0, :1200:2], probs[1, 600:1800:2] = torch.rand(2, 600, generator=torch.Generator().manual_seed(1))
    held = HostRows.of(probs)
    assert held[0].ids is not None
    assert held[1].along(held[0]).tolist() == probs[1][probs[0] > 0].tolist()
    assert held[0].along(held[1]).tolist() == probs[0][probs[1] > 0].tolist()


def test_rows_are_held_as_their_device_suits_and_made_dense_for_who_knows_tensors_alone() -> None:
    probs = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    held = as_in_a_loop(probs)
    assert isinstance(held, HostRows)
    seen: list[type] = []

    def on_tensors(q: torch.Tensor, draft: Draft, u: torch.Tensor) -> object:
        seen.append(type(q))
        return accept_draft(q, draft, u)

    on_rows = takes_rows(lambda q, draft, u: seen.append(type(q)) or accept_draft(q, draft, u))
    for accept in (on_tensors, on_rows):
        judged(accept, held, Draft(torch.tensor([0]), None), torch.tensor([0.5, 0.5]))  # type: ignore[arg-type]
    assert seen == [torch.Tensor, HostRows]


def test_nothing_dense_is_made_while_a_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from spsbench.decode.algorithms import start
    from spsbench.decode.clock import FakeClock, Stopwatch
    from spsbench.decode.sampling import UniformStream
    from spsbench.drafters.model import ModelDrafter
    from spsbench.law.enumeration import TableModel, random_rows

    monkeypatch.setattr(HostRows, "dense", lambda self: pytest.fail("a dense row in a loop"))
    monkeypatch.setattr(loop_rows.law, "warp", lambda *given: pytest.fail("a dense row in a loop"))
    target, draft = (TableModel(random_rows(30, seed), 30) for seed in (1, 2))
    device = torch.device("cpu")
    for policy in (None, StopBelow(0.3)):
        drafter = ModelDrafter(draft, NUCLEUS, device, policy)
        loops = start(target, drafter, [1, 2], 4, NUCLEUS, UniformStream(0, device))(Stopwatch(FakeClock()))
        assert sum(len(next(loops).tokens) for _ in range(8)) >= 8


@pytest.mark.parametrize("policy", [StopBelow(0.4), Entropy(1.0)], ids=["stop-below", "entropy"])
def test_a_margin_is_the_same_of_rows_and_of_tensors(policy: StopBelow | Entropy) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    held, token = warped(logits, NUCLEUS), torch.tensor([3])
    told = loop_rows.for_judge(policy.margin, held)
    assert float(policy.margin(told, token)) == pytest.approx(
        float(policy.margin(warp(logits, NUCLEUS), token))
    )

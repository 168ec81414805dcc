"""Decisions over rows that are written down: what follows, what rounding explains, what contradicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spsbench.base.records import Loop
from spsbench.decode.sampling import UniformStream
from spsbench.law import evidence
from spsbench.law.evidence import added
from spsbench.law.rederive import Decided, decisions_of, lengths_rederived, rederive

CPU = torch.device("cpu")
TARGET, DRAFT = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


def decided(
    token: int, drafted: int, *, stood: bool, pick: float = 0.0, test: float = 0.0, draw: float = 0.0
) -> Decided:
    numbers = (torch.tensor([u], dtype=torch.float64) for u in (pick, test, draw))
    flags = (torch.tensor([flag]) for flag in (stood, not stood, False, False))
    return Decided(torch.tensor([token]), torch.tensor([drafted]), *flags, *numbers)


def judged(one: Decided, target: tuple[float, ...] = TARGET) -> tuple[float, float, float]:
    """(decisions, explained by rounding, contradicted)."""
    q, p = (torch.tensor([row]) for row in (target, DRAFT))
    sums = rederive(one, q, p)
    return sums["decisions"], sums["decisions_rounding"], sums["decisions_contradicted"]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        # The draft's cumulative edges: .2, .5. Token 2 stands below .2/.5 = .4.
        # Behind its rejection is (q - p)+ = (.3, 0, 0).
        (decided(2, 2, stood=True, pick=0.7, test=0.39), (2, 0, 0)),
        (decided(2, 2, stood=True, pick=0.5 - 1e-7, test=0.39), (2, 1, 0)),
        (decided(2, 2, stood=True, pick=0.45, test=0.39), (2, 0, 1)),
        (decided(2, 2, stood=True, pick=0.7, test=0.41), (2, 0, 1)),
        (decided(2, 2, stood=True, pick=0.7, test=0.4 + 1e-7), (2, 1, 0)),
        (decided(0, 2, stood=False, pick=0.7, test=0.41, draw=0.9), (3, 0, 0)),
        (decided(0, 2, stood=False, pick=0.7, test=0.39, draw=0.9), (3, 0, 1)),
        (decided(1, 2, stood=False, pick=0.7, test=0.41, draw=0.9), (3, 0, 1)),
        # Equally probable under both: by rounding the residual may hold it, at the end of token 0's share.
        (decided(1, 2, stood=False, pick=0.7, test=0.41, draw=1 - 1e-7), (3, 1, 0)),
        # What was emitted is not what was accepted.
        (decided(1, 2, stood=True, pick=0.7, test=0.39), (2, 0, 1)),
        # Nothing drafted: a draw from the target.
        (decided(1, -1, stood=False, draw=0.7), (1, 0, 0)),
        (decided(1, -1, stood=False, draw=0.8 + 1e-7), (1, 1, 0)),
        (decided(1, -1, stood=False, draw=0.9), (1, 0, 1)),
    ],
)
def test_a_decision_follows_or_rounding_explains_it_or_it_contradicts(
    one: Decided, expected: tuple[int, int, int]
) -> None:
    assert judged(one) == expected


def test_no_rounding_makes_an_impossible_token_possible() -> None:
    cut = (0.625, 0.375, 0.0)
    assert judged(decided(2, -1, stood=False, draw=1 - 1e-9), cut) == (1, 0, 1)
    assert judged(decided(1, -1, stood=False, draw=1 - 1e-9), cut) == (1, 0, 0)


def test_where_rounding_alone_rejected_the_row_of_the_target_is_drawn_from() -> None:
    same = decided(1, 2, stood=False, pick=0.7, test=1 - 1e-8, draw=0.4)
    assert judged(same, target=DRAFT) == (3, 1, 0)


def test_a_greedy_decision_has_no_edge() -> None:
    one = decided(0, -1, stood=False, draw=0.9)
    sums = rederive(one, torch.tensor([[1.0, 0.0, 0.0]]), None)
    assert sums["decisions"] == sums["decisions_closest"] == 1
    assert sums["decisions_rounding"] == sums["decisions_contradicted"] == 0


def test_the_closest_call_is_the_least_distance_from_an_edge_with_something_behind_it() -> None:
    rows = torch.tensor([TARGET], dtype=torch.float64)
    for draw, distance in ((0.51, 0.01), (0.79, 0.01), (0.001, 0.499), (0.999, 0.199)):
        token = 0 if draw < 0.5 else 1 if draw < 0.8 else 2
        sums = rederive(decided(token, -1, stood=False, draw=draw), rows, None)
        assert sums["decisions_closest"] == pytest.approx(distance)


def test_in_parts_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    n, size = 50, 7
    q, p = (torch.randn(n, size, generator=generator).softmax(-1) for _ in range(2))
    stood = torch.rand(n, generator=generator) < 0.5
    ids = [torch.randint(size, (n,), generator=generator) for _ in range(2)]
    numbers = [torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(3)]
    nowhere = torch.zeros(n, dtype=torch.bool)
    one = Decided(*ids, stood, ~stood, nowhere, nowhere, *numbers)
    whole = rederive(one, q, p)
    monkeypatch.setattr(evidence, "CHUNK_ELEMENTS", 3 * size)
    assert rederive(one, q, p) == whole
    assert whole["decisions_contradicted"] > 10


def test_the_closest_of_sums_is_a_minimum() -> None:
    one, other = {"decisions": 3.0, "decisions_closest": 0.2}, {"decisions": 4.0, "decisions_closest": 0.1}
    assert added(one, other) == {"decisions": 7.0, "decisions_closest": 0.1}
    assert added({}, one) == added(one, {}) == one
    assert "decisions_closest" not in added({"positions": 1.0}, {})


@pytest.mark.parametrize("k", [0, 1, 4, 7, 600])
def test_the_numbers_are_those_of_the_stream(k: int) -> None:
    loops = 1500 if k < 600 else 3
    stream = UniformStream(5, CPU)
    expected = torch.stack([stream(2 * k + 1) for _ in range(loops)]).double()
    one = _laid_out(loops, k)
    assert torch.equal(one.draw_u, expected[:, -1])
    if k:
        assert torch.equal(one.pick_u, expected[:, 0])
        assert torch.equal(one.test_u, expected[:, k])


def _laid_out(loops: int, k: int) -> Decided:
    """Loops that rejected their first token."""
    record = Loop(k, 0, 1, min(k, 1), 0.0, 0, None, None, None, None, 0.0)
    return decisions_of([1] * loops, [record] * loops, [[2] * k] * loops, k, seed=5)


def test_positions_of_a_loop_that_was_cut() -> None:
    """K = 2: both stand with a bonus; one stands, one falls; the output ends inside the draft."""
    loops = [
        Loop(2, accepted, emitted, 2, 0.0, 0, None, None, None, None, 0.0)
        for accepted, emitted in ((2, 3), (1, 2), (2, 1))
    ]
    one = decisions_of([1, 2, 3, 4, 5, 6], loops, [[1, 2], [4, 9], [6, 7]], 2, seed=0)
    assert one.drafted.tolist() == [1, 2, -1, 4, 9, 6]
    assert one.stood.tolist() == [True, True, False, True, False, True]
    assert one.drawn.tolist() == [False, False, True, False, True, False]
    assert _empty().tokens.shape == (0,)


@pytest.mark.parametrize("drafted", [0, 1, 2, 3, 4])
def test_a_short_draft_is_tested_with_the_last_numbers(drafted: int) -> None:
    k = 4
    expected = UniformStream(3, CPU)(2 * k + 1).double()
    tokens = list(range(drafted + 1))
    loop = Loop(drafted, drafted, drafted + 1, drafted, 0.0, 0, None, None, None, None, 0.0)
    one = decisions_of(tokens, [loop], [tokens[:-1]], k, seed=3, allowed=[k])
    assert torch.equal(one.pick_u[:drafted], expected[:drafted])
    assert torch.equal(one.test_u[:drafted], expected[2 * k - drafted : 2 * k])
    assert one.draw_u.tolist() == [float(expected[-1])] * (drafted + 1)
    assert one.could_end.tolist() == [j < drafted and j < k - 1 for j in range(drafted + 1)]
    assert one.went_on.tolist() == [j < drafted - 1 for j in range(drafted + 1)]


@pytest.mark.parametrize(
    ("tau", "went_on", "expected"),
    [
        # Token 2 has probability .5 under the draft.
        (0.4, True, (3, 0, 0)),
        (0.4, False, (3, 0, 1)),
        (0.6, True, (3, 0, 1)),
        (0.6, False, (3, 0, 0)),
        (0.5 + 1e-7, True, (3, 1, 0)),
        (0.5 - 1e-7, False, (3, 1, 0)),
    ],
)
def test_where_a_draft_ended_is_derived_anew(
    tau: float, went_on: bool, expected: tuple[int, int, int]
) -> None:
    ends = {"could_end": torch.tensor([True]), "went_on": torch.tensor([went_on])}
    one = replace(decided(2, 2, stood=True, pick=0.7, test=0.39), **ends)
    q, p = (torch.tensor([row], dtype=torch.float64) for row in (TARGET, DRAFT))

    def margin(probs: Tensor, tokens: Tensor) -> Tensor:
        return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - tau

    sums = rederive(one, q, p, margin=margin)
    assert (sums["decisions"], sums["decisions_rounding"], sums["decisions_contradicted"]) == expected
    assert rederive(one, q, p)["decisions"] == 2


@pytest.mark.parametrize(("early", "wrong"), [(False, 3), (True, 2)])
def test_lengths_that_no_policy_allows_contradict(early: bool, wrong: int) -> None:
    """Allowed 2 each: two drafted follow, one may, none and three do not."""
    sums = lengths_rederived([[1, 2], [1], [], [1, 2, 3]], [2] * 4, early=early)
    assert sums == {"decisions": 4, "decisions_contradicted": wrong}


def _empty() -> Decided:
    return decisions_of([], [], [], 4, seed=0)


def test_no_decision_has_no_sums() -> None:
    nothing: Tensor = torch.empty(0, 3)
    assert rederive(_empty(), nothing, nothing) == {}

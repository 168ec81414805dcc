"""Hand-made cases of the modified rejection test: always, never and sometimes accept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spsbench.decode.rejection import Draft, accept_draft, acceptance_probability, residual

F64 = torch.float64
HALF = torch.tensor([0.5] * 4, dtype=F64)


def rows(*probs: list[float]) -> torch.Tensor:
    return torch.tensor(probs, dtype=F64)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    q = rows([0.1, 0.9], [0.6, 0.4], [0.0, 1.0])
    for u in (0.0, 0.5, 1 - 2**-53):
        verdict = accept_draft(q, Draft(torch.tensor([1, 0]), q[:2]), torch.full((3,), u, dtype=F64))
        assert int(verdict.accepted) == 2
        assert int(verdict.token) == 1


def test_what_the_target_rules_out_is_never_accepted() -> None:
    q = rows([0.0, 1.0], [1.0, 0.0])
    verdict = accept_draft(q, Draft(torch.tensor([0]), rows([1.0, 0.0])), torch.zeros(2, dtype=F64))
    assert int(verdict.accepted) == 0
    assert int(verdict.token) == 1


def test_the_first_rejection_ends_the_draft() -> None:
    q = rows([0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5])
    draft = Draft(torch.tensor([0, 0, 0]), rows([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]))
    verdict = accept_draft(q, draft, torch.zeros(4, dtype=F64))
    assert int(verdict.accepted) == 1
    assert int(verdict.token) == 1


@pytest.mark.parametrize(("u", "accepted"), [(0.0, 1), (0.499, 1), (0.5, 0), (0.9, 0)])
def test_acceptance_is_below_the_ratio(u: float, accepted: int) -> None:
    q, p = rows([0.4, 0.6], [1.0, 0.0]), rows([0.8, 0.2])
    verdict = accept_draft(q, Draft(torch.tensor([0]), p), torch.tensor([u, 0.3], dtype=F64))
    assert int(verdict.accepted) == accepted


def test_without_a_draft_the_target_is_sampled() -> None:
    empty = Draft(torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=F64))
    verdict = accept_draft(rows([0.3, 0.7]), empty, torch.tensor([0.31], dtype=F64))
    assert (int(verdict.accepted), int(verdict.token)) == (0, 1)


def test_an_empty_residual_falls_back_to_the_target() -> None:
    q = rows([0.3, 0.7])
    assert residual(q, q).tolist() == q.tolist()


DISTRIBUTION = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda p: sum(p) > 0.01)


@given(DISTRIBUTION, DISTRIBUTION)
def test_one_position_gives_the_target_exactly(target: list[float], draft: list[float]) -> None:
    """Theorem 1 of the paper: accepted mass plus residual mass is the target, token by token."""
    q = torch.tensor(target, dtype=F64) / sum(target)
    p = torch.tensor(draft, dtype=F64) / sum(draft)
    drawn = p > 0
    accepted = torch.zeros_like(q)
    accepted[drawn] = p[drawn] * acceptance_probability(q[drawn], p[drawn])
    rest = residual(q, p)
    out = accepted + (1 - accepted.sum()) * rest / rest.sum()
    assert torch.allclose(out, q, rtol=0, atol=1e-12)


def test_rows_of_tokens_that_were_certain_are_one_hot() -> None:
    rows = Draft(torch.tensor([2, 0]), None).rows(3, torch.float64)
    assert rows.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]

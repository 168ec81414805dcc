"""The law of a rule that is only asked: the real one's is the target's, wrong ones' are not."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spsbench.decode import rejection
from spsbench.decode.rejection import Accept, Draft, Verdict, accept_draft
from spsbench.parts.verify import controls
from spsbench.parts.verify.analytic import emitted_law

F64 = torch.float64
V, K = 6, 3
EXACT = 1e-12


def rows(n: int, seed: int, zeros: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """[n, V] random rows, some of whose tokens are impossible."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(n, V, generator=generator, dtype=F64) ** 2
    for row in probs:
        row[torch.randperm(V, generator=generator)[:zeros]] = 0.0
    return (probs / probs.sum(-1, keepdim=True)).to(dtype)


def error(rule: Accept, q: Tensor, p: Tensor, tokens: tuple[int, ...], j: int) -> float:
    """Total variation between what the rule implies for token j and the target's row."""
    law = emitted_law(rule, q, Draft(torch.tensor(tokens), p), p, j)
    return float((law - q[j].double()).abs().sum()) / 2


def drafts(q: Tensor, p: Tensor) -> list[tuple[int, ...]]:
    """Drafts of which each token can be drawn and accepted."""
    possible = [((a > 0) & (b > 0)).nonzero().flatten().tolist() for a, b in zip(q, p, strict=False)]
    return list(itertools.product(*possible))


@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
@pytest.mark.parametrize(("seed", "zeros"), [(0, 0), (1, 0), (2, 2), (3, 3)])
def test_the_real_rule_emits_the_targets_law_at_every_place(
    seed: int, zeros: int, dtype: torch.dtype
) -> None:
    q, p = rows(K + 1, seed, zeros, dtype), rows(K, seed + 100, zeros, dtype)
    for tokens in drafts(q, p)[:12]:
        for j in range(K + 1):
            assert error(accept_draft, q, p, tokens, j) < (EXACT if dtype == F64 else 1e-5)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 4))
def test_the_law_is_the_targets_for_any_rows(seed: int, k: int, zeros: int) -> None:
    q, p = rows(k + 1, seed, zeros), rows(k, seed + 1, zeros)
    for tokens in drafts(q, p)[:1]:
        assert max(error(accept_draft, q, p, tokens, j) for j in range(k + 1)) < EXACT


def test_what_the_draft_really_drew_from_is_what_counts() -> None:
    q, told, really = rows(K + 1, 5), rows(K, 6), rows(K, 7)
    law = emitted_law(accept_draft, q, Draft(torch.tensor([0, 1, 2]), told), really, 1)
    assert float((law - q[1]).abs().sum()) > 0.02


def final_number_of_the_test(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draws with the number that rejected."""
    n = min(int(accept_draft(q, draft, u).accepted), len(draft.tokens) - 1)
    return accept_draft(q, draft, torch.cat([u[:-1], u[n : n + 1]]))


def accepts_by_the_last_number(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    return accept_draft(q, draft, u[-1:].expand(len(u)))


def goes_on_behind_a_rejection(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Counts all accepted tokens in place of the leading ones."""
    column = draft.tokens.unsqueeze(-1)
    ratio = q[:-1].gather(-1, column) / draft.probs.gather(-1, column)
    n = (u[:-1].unsqueeze(-1) < ratio).sum()
    return Verdict(n, accept_draft(q, draft, u).token)


def scaled_before_the_clamp(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Takes .9 p off the target in place of p."""
    verdict = accept_draft(q, draft, u)
    n = int(verdict.accepted)
    if n == len(draft.tokens):
        return verdict
    return Verdict(verdict.accepted, rejection.draw((q[n] - 0.9 * draft.probs[n]).clamp(min=0), u[-1]))


def strict_edge(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Accepts with 98% of the right probability."""
    return accept_draft(q, draft, torch.cat([(u[:-1] / 0.98), u[-1:]]))


WRONG = {
    "residual of the next row": controls._residual_row,
    "one number for all tests": controls._one_uniform,
    "residual not normalised": controls._unscaled_residual,
    "residual scaled": scaled_before_the_clamp,
    "bonus from the draft": controls._bonus_from_draft,
    "rows off by one": controls._row_off_by_one,
    "final draw by a test's number": final_number_of_the_test,
    "tests by the final number": accepts_by_the_last_number,
    "counts behind a rejection": goes_on_behind_a_rejection,
    "accepts 2% too little": strict_edge,
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG.keys())
def test_wrong_rules_have_another_law(rule: Accept) -> None:
    q, p = rows(K + 1, 8), rows(K, 9)
    tokens = (0, 1, 2)
    assert max(error(accept_draft, q, p, tokens, j) for j in range(K + 1)) < EXACT
    assert max(error(rule, q, p, tokens, j) for j in range(K + 1)) > 1e-3

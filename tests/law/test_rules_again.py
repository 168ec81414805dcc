"""Every decision of every rule derived anew from its rows: right ones follow, each wrong walk is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor

from spsbench.decode import trees
from spsbench.decode.rejection import Draft, Verdict, decided
from spsbench.decode.rules import sample_and_compare
from spsbench.decode.sampling import draw
from spsbench.drafters import registry
from spsbench.drafters.registry import is_derivable
from spsbench.law.evidence import Sums, added
from spsbench.law.rules_again import RULES, RuledLoop, derived

Accept = Callable[[Tensor, Draft, Tensor], Verdict]

V, LOOPS = 7, 300
CHANGED = 100
"""Loops of each shape that are enough to find a change: a tenth of them contradicts."""

CHAIN = (-1, 0, 1, 2)
TREE = (-1, -1, 0, 0, 1, 2)
OF_CHAINS = ("block", "sample-and-compare")
ACCEPT: dict[str, Accept] = {
    "sample-and-compare": sample_and_compare({}).accept,
    "block": trees.traversal,
    "traversal": trees.traversal,
    "recursive-rejection": trees.recursive_rejection,
    "one-hot": trees.one_hot,
    "k-seq": trees.k_seq,
}


def loop(rule: str, seed: int, parents: tuple[int, ...], accept: Accept, sharp: float = 1.5) -> RuledLoop:
    """One loop of a rule over random rows, in the dtype of production."""
    generator = torch.Generator().manual_seed(seed)
    n = len(parents)
    q = (sharp * torch.randn(n + 1, V, generator=generator)).softmax(-1)
    p = (q[[parent + 1 for parent in parents]] * torch.rand(n, V, generator=generator)).clamp(min=1e-3)
    p /= p.sum(-1, keepdim=True)
    numbers = torch.rand(2 * n + 1, generator=generator)
    tokens, rows = list[int](), list[Tensor]()
    for node, parent in enumerate(parents):
        row = p[node]
        before = [other for other in range(node) if parents[other] == parent]
        if before and rule == "k-seq":  # siblings of one row, drawn independently
            row = rows[before[0]]
        elif before:  # without replacement
            row = row.index_fill(0, torch.tensor([tokens[other] for other in before]), 0.0)
            row = row / row.sum()
        rows.append(row)
        tokens.append(int(draw(row, numbers[node])))
    draft = Draft(torch.tensor(tokens), torch.stack(rows), None if parents == CHAIN else parents)
    verdict = accept(q, draft, numbers[n:])
    drafted, accepted, token = decided(draft, verdict)
    path = tuple(range(accepted)) if verdict.path is None else verdict.path
    own = numbers.double().tolist()
    return RuledLoop(drafted, parents, q.numpy(), torch.stack(rows).numpy(), path, token, own)


@cache
def right_loop(rule: str, seed: int, parents: tuple[int, ...]) -> RuledLoop:
    """A loop of the rule as it is; what is changed in it is changed in a copy."""
    return loop(rule, seed, parents, ACCEPT[rule])


def shapes(rule: str) -> list[tuple[int, ...]]:
    return [CHAIN] if rule == "block" else [CHAIN, TREE]


def judged(
    rule: str, accept: Accept, change: Callable[[RuledLoop], RuledLoop] = lambda one: one, loops: int = LOOPS
) -> Sums:
    made = right_loop if accept is ACCEPT[rule] else partial(loop, accept=accept)
    total: Sums = {}
    for parents in shapes(rule):
        for seed in range(loops):
            total = added(total, derived(rule, change(made(rule, seed, parents))))
    return total


@pytest.mark.parametrize("rule", RULES)
def test_every_decision_of_a_right_loop_follows(rule: str) -> None:
    sums = judged(rule, ACCEPT[rule])
    assert sums["decisions_contradicted"] == sums["decisions_open"] == 0
    assert sums["decisions_rounding"] <= 2
    assert sums["decisions"] > 5 * LOOPS
    assert 0 <= sums["decisions_closest"] < 1e-2


def wrong_number(one: RuledLoop) -> RuledLoop:
    return one._replace(numbers=[(u + 0.37) % 1 for u in one.numbers])


def next_token(one: RuledLoop) -> RuledLoop:
    return one._replace(token=(one.token + 1) % V)


def shorter(one: RuledLoop) -> RuledLoop:
    """What stood last is said to have been drawn after a fall."""
    if not one.path:
        return one
    return one._replace(path=one.path[:-1], token=one.drafted[one.path[-1]])


def other_row(one: RuledLoop) -> RuledLoop:
    return one._replace(target=np.roll(one.target, 1, axis=0))


@pytest.mark.parametrize("change", [wrong_number, next_token, shorter, other_row])
@pytest.mark.parametrize("rule", RULES)
def test_a_changed_loop_contradicts(rule: str, change: Callable[[RuledLoop], RuledLoop]) -> None:
    sums = judged(rule, ACCEPT[rule], change, CHANGED)
    assert sums["decisions_contradicted"] > CHANGED / 10


def _lenient(accept: Accept) -> Accept:
    """Tests with numbers that are a tenth smaller."""
    return lambda q, draft, u: accept(q, draft, torch.cat([0.9 * u[:-1], u[-1:]]))


@pytest.mark.parametrize("rule", RULES)
def test_a_lenient_rule_contradicts(rule: str) -> None:
    assert judged(rule, _lenient(ACCEPT[rule]))["decisions_contradicted"] > 10


def _without_residual(accept: Accept) -> Accept:
    """Draws the token behind what stands from the target's row there, whatever fell before."""

    def wrong(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        verdict = accept(q, draft, u)
        stands = int(verdict.accepted)
        last = verdict.path[-1] if verdict.path else stands - 1
        return verdict._replace(token=draw(q[last + 1 if stands else 0], u[-1]))

    return wrong


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "sample-and-compare"])
def test_a_rule_without_its_residual_contradicts(rule: str) -> None:
    assert judged(rule, _without_residual(ACCEPT[rule]))["decisions_contradicted"] > 10


def test_every_lossless_rule_is_derived() -> None:
    ours = {name for name in registry.RULES.names() if is_derivable(name)}
    assert ours == {*RULES, "modified-rejection"}


def test_a_pick_of_its_own_way_is_open() -> None:
    one = loop("block", 3, CHAIN, ACCEPT["block"])
    moved = one._replace(numbers=[(u + 0.5) % 1 for u in one.numbers[:4]] + list(one.numbers[4:]))
    sums = derived("block", moved, own_way=True)
    assert sums["decisions_contradicted"] == 0 < sums["decisions_open"]
    assert derived("block", moved)["decisions_contradicted"] == sums["decisions_open"]


@pytest.mark.parametrize("rule", RULES)
def test_a_certain_draft_has_no_pick(rule: str) -> None:
    """Under point masses, and under greedy rows, too, all follows."""
    for sharp in (1.5, 200.0):
        for seed in range(40):
            one = loop(rule, seed, shapes(rule)[-1], ACCEPT[rule], sharp)
            certain = replace_draft(one)
            verdict = ACCEPT[rule](*certain)
            drafted, accepted, token = decided(certain[1], verdict)
            path = tuple(range(accepted)) if verdict.path is None else verdict.path
            sums = derived(rule, one._replace(draft=None, path=path, token=token))
            assert sums["decisions_contradicted"] == 0
            assert sums["decisions"] <= len(drafted) + 1


def replace_draft(one: RuledLoop) -> tuple[Tensor, Draft, Tensor]:
    """What a rule judges of a loop if its draft is certain of each token."""
    parents = None if tuple(one.parents) == CHAIN else tuple(one.parents)
    numbers = torch.tensor(one.tests, dtype=torch.float32)
    return torch.from_numpy(one.target), Draft(torch.tensor(one.drafted), None, parents), numbers

"""Planted faults of rules for trees and of block verification, each reported of an engine or demanded of one.

Each is a rule with the way of drafting that shows it; docs/rulebook.md names the threads. One table proves
nothing: a fault can be exact on many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base import AnyFloats
from spsbench.decode import ROOT, Accept, Draft, HostRow, HostRows, Rows, Tree, Verdict, trees
from spsbench.drafters import ModelTreeDrafter, Siblings


def _block_chances(q: Rows | Tensor, draft: Draft, u: Tensor) -> tuple[Tree, list[float], list[float]]:
    """(the tree, the chance of each prefix that it may stand, of each test) of block verification."""
    tree = Tree(q, draft, u)
    may, stands = [1.0], [1.0]
    for node, token in enumerate(tree.tokens):
        may.append(min(1.0, may[-1] * tree.target(node - 1).at(token) / tree.draft(node).at(token)))
    for node in range(1, len(tree.tokens)):
        mass = float(_rest(tree, node - 1, may[node]).sum())
        stands.append(mass / (mass + 1 - may[node]) if mass + 1 > may[node] else 1.0)
    return tree, may, [*stands, may[-1]]


def _rest(tree: Tree, node: int, may: float) -> AnyFloats:
    row = tree.target(node)
    return np.maximum(may * row.weights - tree.draft(node + 1).along(row), 0.0)


def _block_verdict(tree: Tree, may: Sequence[float], accepted: int) -> Verdict:
    row = tree.target(accepted - 1)
    node = accepted - 1
    if accepted == len(tree.tokens):
        return tree.verdict(node, row)
    rest = _rest(tree, node, may[accepted])
    return tree.verdict(node, HostRow(row.ids, rest if rest.any() else row.weights))


def _stopped(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Stops block verification at the first prefix that falls (asked for in vllm-ascend 11985)."""
    tree, may, stands = _block_chances(q, draft, u)
    fell = (i for i, number in enumerate(tree.tests) if number >= stands[i + 1])
    return _block_verdict(tree, may, next(fell, len(tree.tests)))


def _product(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Takes the running product as block verification's threshold (vllm-ascend 7807)."""
    tree, may, _ = _block_chances(q, draft, u)
    stood = [i + 1 for i, number in enumerate(tree.tests) if number < may[i + 1]]
    return _block_verdict(tree, may, max(stood, default=0))


def _tokenwise(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Gives block verification the residual of modified rejection."""
    tree, _, stands = _block_chances(q, draft, u)
    stood = [i + 1 for i, number in enumerate(tree.tests) if number < stands[i + 1]]
    return _block_verdict(tree, [1.0] * (len(tree.tokens) + 1), max(stood, default=0))


def _bonus_above(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draws the token after the last node from the row before it."""
    verdict = trees.recursive_rejection(q, draft, u)
    assert verdict.path is not None
    tree = Tree(q, draft, u)
    if not verdict.path or tree.children[verdict.path[-1] + 1]:
        return verdict
    row = tree.target((ROOT, *verdict.path)[-2])
    return verdict._replace(token=torch.tensor(row.drawn(row.weights, tree.last)))


def _next_siblings_row(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Subtracts the next sibling's row from the target's, in place of the fallen sibling's own row."""
    tree = Tree(q, draft, u)
    node = ROOT
    while True:
        left = tree.target(node)
        below = tree.children[node + 1]
        for child, behind in zip(below, [*below[1:], *below[-1:]], strict=True):
            own_row = tree.draft(child)
            if tree.tests[child] < left.at(tree.tokens[child]) / own_row.at(tree.tokens[child]):
                node = child
                break
            rest = np.maximum(left.weights - tree.draft(behind).along(left), 0.0)
            left = HostRow(left.ids, rest / rest.sum()) if rest.any() else left
        else:
            return tree.verdict(node, left)


class _ShownAsDrawn(ModelTreeDrafter):
    """The most probable tokens, told as if they had been drawn (transformers 32867, in a tree)."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self._drawn_rows = list[HostRow]()
        made = super().draft(tokens, k, u)
        return Draft(made.tokens, HostRows(self._drawn_rows, self._vocab_size), made.parents)

    def _choice(self, row: HostRow, width: int, numbers: Sequence[float]) -> Iterator[tuple[int, HostRow]]:
        for token, drawn_from in super()._choice(row, width, numbers):
            self._drawn_rows.append(drawn_from)
            yield token, drawn_from


class _NotNormalised(ModelTreeDrafter):
    """Siblings without replacement, told with what is left of the row and not with its share."""

    def _choice(self, row: HostRow, width: int, numbers: Sequence[float]) -> Iterator[tuple[int, HostRow]]:
        gone = list[int]()
        for token, left in super()._choice(row, width, numbers):
            share = 1.0 - sum(map(row.at, gone))
            gone.append(token)
            yield token, HostRow(left.ids, share * left.weights)


class Fault(NamedTuple):
    """A wrong rule, and drafts that show it; ``drafter`` may report other rows than it drew from."""

    rule: Accept
    siblings: Siblings
    branching: Sequence[int]
    drafter: type[ModelTreeDrafter] = ModelTreeDrafter


FAULTS = {
    "stopped at the first failure": Fault(_stopped, "independent", (1, 1)),
    "product as threshold": Fault(_product, "independent", (1, 1)),
    "token-wise residual": Fault(_tokenwise, "independent", (1, 1)),
    "most probable, told as drawn": Fault(trees.recursive_rejection, "top", (2,), _ShownAsDrawn),
    "not normalised": Fault(trees.recursive_rejection, "without", (2,), _NotNormalised),
    "residual of the next sibling": Fault(_next_siblings_row, "without", (2,)),
    "bonus from the row above": Fault(_bonus_above, "without", (2, 1)),
}

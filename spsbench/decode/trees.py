"""Rules for drafts that are trees; a chain is the tree of one branch.

Each walks the target's rows on the host, row ``n + 1`` behind node n and row 0 behind the pending token, and
answers with the nodes that stand and the token after them. A node's number u decides one test, the last
number draws. All are lossless for any draft whose rows are those that its tokens were drawn from: whatever a
token is tested with is taken off the row that the walk goes on with.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import AnyFloats
from spsbench.decode.rejection import ROOT, Draft, Verdict, residual
from spsbench.decode.rows import HostRow, Rows, on_host, rows_of, takes_rows


class Tree:
    """A draft beside the target's rows, on the host.

    Attributes:
        children: [n + 1] the nodes below the pending token, and below each node, in the order of drawing.
        tests: [n] the numbers of the tests.
        last: the number of the draw.
    """

    def __init__(self, q: Rows | Tensor, draft: Draft, u: Tensor, *, certain: bool = False) -> None:
        self._rows = on_host(rows_of(q))
        own_rows = None if certain else draft.own_rows
        self.tokens: list[int] = draft.tokens.tolist()
        self._told = None if own_rows is None else on_host(own_rows)
        *self.tests, self.last = u.tolist()
        self._device, n = u.device, len(self.tokens)
        self._parents = draft.above
        self.children: list[list[int]] = [[] for _ in range(n + 1)]
        for node, parent in enumerate(self._parents):
            self.children[parent + 1].append(node)

    def target(self, node: int) -> HostRow:
        return self._rows[node + 1]

    def draft(self, node: int) -> HostRow:
        """Return the row that a node was drawn from; a point mass where it was certain."""
        if self._told is None:
            return HostRow(np.array([self.tokens[node]]), np.ones(1))
        return self._told[node]

    def verdict(self, node: int, left: HostRow) -> Verdict:
        """Let a node and its ancestors stand, and draw the token after it from ``left``."""
        token = left.drawn(left.weights, self.last)
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self._parents[node]
        stand, drawn = torch.tensor([len(path), token], device=self._device).unbind(0)
        return Verdict(stand, drawn, tuple(path[::-1]))


def _ratio(left: HostRow, drawn_from: HostRow, token: int) -> float:
    """The target's probability of a token over the draft's, as ``rejection.acceptance_probability`` has it:
    of a token that its own row denies it is infinite, or not a number."""
    p, q = drawn_from.at(token), left.at(token)
    return q / p if p else math.inf if q else math.nan


@takes_rows
def recursive_rejection(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Test each sibling as modified rejection would, by what those before it have left of the target's row.

    Of siblings drawn independently SpecInfer's rule (Miao et al. 2023, Algorithm 2); of those drawn without
    replacement Sequoia's (Chen et al. 2024, Algorithm 2); of a chain modified rejection.

    Args:
        q: n + 1 target rows: behind the pending token, and behind each node.
        draft: n tokens, their parents and the rows that they were drawn from.
        u: [n + 1] uniform numbers in [0, 1): n tests and the draw.
    """
    return _walk(Tree(q, draft, u))


@takes_rows
def one_hot(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Accept a sibling with the target's probability of it, else take that token off the row (EAGLE).

    Li et al. 2024 (EAGLE-2): recursive rejection of point masses. Whatever chose the siblings, each is then
    a proposal of one token, so that the law is the target's, for the most probable tokens and for drawn ones.
    """
    return _walk(Tree(q, draft, u, certain=True))


def _walk(tree: Tree) -> Verdict:
    node = ROOT
    while True:
        left = tree.target(node)
        for child in tree.children[node + 1]:
            drawn_from = tree.draft(child)
            if tree.tests[child] < _ratio(left, drawn_from, tree.tokens[child]):
                node = child
                break
            weights = residual(left.weights, drawn_from.along(left))
            left = HostRow(left.ids, weights / weights.sum())
        else:
            return tree.verdict(node, left)


@takes_rows
def compare(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Draw the target's token at each depth and follow the sibling that equals it; see ``rules``.

    Siblings must differ. Their rows are not read; the number of depth i draws there.
    """
    tree = Tree(q, draft, u, certain=True)
    node = ROOT
    for number in u.tolist():
        row = tree.target(node)
        token = row.drawn(row.weights, number)
        same = [child for child in tree.children[node + 1] if tree.tokens[child] == token]
        if not same:
            break
        node = same[0]
    tree.last = number
    return tree.verdict(node, row)


@takes_rows
def traversal(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Test leaves before what is above them, each with the chance that its whole path may stand.

    Weng et al. 2025, Algorithm 1: block verification of a tree. A branch that falls changes the row and the
    chance that the next sibling meets.
    """
    tree = Tree(q, draft, u)
    verdict = _traverse(tree, ROOT, 1.0)
    assert verdict is not None  # the pending token stands
    return verdict


def _traverse(tree: Tree, node: int, chance: float) -> Verdict | None:
    """The verdict below a node or at it, None if none stands; ``chance``: that its path may stand."""
    left = tree.target(node)
    for child in tree.children[node + 1]:
        drawn_from = tree.draft(child)
        below = min(chance * _ratio(left, drawn_from, tree.tokens[child]), 1.0)
        verdict = _traverse(tree, child, below)
        if verdict is not None:
            return verdict
        rest = np.maximum(chance * left.weights - drawn_from.along(left), 0.0)
        mass = float(rest.sum())
        if mass > 0:
            left = HostRow(left.ids, rest / mass)
        chance = mass / (mass + 1.0 - chance) if mass + 1.0 > chance else 1.0
    return tree.verdict(node, left) if node == ROOT or tree.tests[node] < chance else None


@takes_rows
def k_seq(q: Rows | Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Test all of a place's siblings, drawn independently, with min(1, q/(rho p)) (SpecTr, Sun et al. 2023).

    Algorithm 2 there: rho is the least at which as much is accepted as the residual leaves room for. Siblings
    meet one test, so that their order does not matter, and after the last one comes a token from
    q - min(p, q/rho) (1 - (1 - beta)^k) / beta.
    """
    tree, node = Tree(q, draft, u), ROOT
    while True:
        row = tree.target(node)
        siblings = tree.children[node + 1]
        if not siblings:
            return tree.verdict(node, row)
        drawn_from = tree.draft(siblings[0])
        p = drawn_from.along(row)
        scale = _scale(row.weights, p, len(siblings))
        for child in siblings:
            if scale * tree.tests[child] < _ratio(row, drawn_from, tree.tokens[child]):
                node = child
                break
        else:
            shared = np.minimum(p, row.weights / scale)
            beta = float(shared.sum())
            taken = (1.0 - (1.0 - beta) ** len(siblings)) / beta if beta else 0.0
            return tree.verdict(node, HostRow(row.ids, residual(row.weights, taken * shared)))


def _scale(q: AnyFloats, p: AnyFloats, k: int) -> float:
    """Rho, from 1 to k the least whose residual is not negative, searched from above."""
    low, high = 1.0, float(k)
    for _ in range(60 if k > 1 else 0):
        middle = (low + high) / 2
        beta = float(np.minimum(p, q / middle).sum())
        low, high = (low, middle) if 1.0 - (1.0 - beta) ** k <= middle * beta else (middle, high)
    return high

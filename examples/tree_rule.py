"""A rule of one's own for drafts that are trees: the target's own tokens, and as many as the tree foresaw.

    spsbench verify --rule examples/tree_rule.py:KIND --k 2

``spsbench.testing.assert_lossless("model:tree=2-1", rule=KIND)`` proves it by enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spsbench import Draft, Rule, RuleKind, Verdict
from spsbench.decode.sampling import draw


def accept(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Rows q [n+1, V] behind the pending token and each of n nodes, numbers u [n+1]: which nodes stand."""
    own, tokens, path, node = draw(q, u), draft.tokens.tolist(), list[int](), -1
    while True:
        said = int(own[node + 1])
        below = [child for child, parent in enumerate(draft.above) if parent == node]
        same = [child for child in below if tokens[child] == said]
        if not same:
            return Verdict(torch.tensor(len(path)), own[node + 1], tuple(path))
        node = same[0]
        path.append(node)


def expected(q: Tensor, draft: Draft) -> Tensor:
    """[n] the probability that a token drawn from the draft's row is the target's."""
    n = len(draft.tokens)
    return (draft.rows(q.shape[-1], q.dtype) * q[:n]).sum(-1)


def own_tokens(options: Mapping[str, object]) -> Rule:
    """It has no options."""
    return Rule(accept, expected)


KIND = RuleKind(
    name="own-tokens",
    summary="Draw the target's token behind every node; those that the tree has stand.",
    lossless=True,
    build=own_tokens,
    trees=True,
)

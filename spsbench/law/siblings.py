"""The loops that a tree of drafts takes over a text which its target wrote.

A static tree has b siblings at a place, and which b depends on its depth alone. A loop goes on at a place if
a sibling stands that is the text's token x. Given the text, that has a probability which does not depend on
the places before it, as for a chain (``law.text_loops``): P(a sibling x stands, x written) / q(x).

* Siblings that are certain (the most probable tokens, as point masses): each is accepted with what the
  target has of it, in all q(x) if x is among them, and that is all of P(x written). So it is 1 if x is among
  the first b of the draft's row, else 0.
* Siblings drawn from p and tested one after the other (recursive rejection, SpecInfer and Sequoia): let q_j
  and p_j be the rows that sibling j meets. P(it is y, rejected) = max(p_j - q_j, 0)(y), and x then follows
  q_{j+1} = max(q_j - p_j, 0) / sum, which y does not change. So, given x, the rejected siblings have the laws
  max(p_j - q_j, 0) / sum, and the next is x and stands with min(1, p_j(x) / q_j(x)): the chance that one of b
  does is the mean over rejected siblings of 1 - prod_j (1 - min(1, p_j(x) / q_j(x))). Drawn independently
  p_j is p, and nothing is left to average. Drawn without replacement p_j is p without the rejected ones: the
  mean over the last of them is a sum, and those before it are drawn. For up to two siblings that is exact.
  Expected loops are linear in the chance of each place, so that for more they are met without bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spsbench.base.arrays import AnyFloats as Weights
from spsbench.base.arrays import Floats
from spsbench.decode.rows import HostRow

_PATHS = 4
"""Of rejected siblings, drawn at a place where more than two are tested."""


def top_siblings(p: HostRow, token: int, most: int) -> Floats:
    """Return [most] 1 where a token is among the 1, 2... most probable of a row, equal ones by smaller id."""
    own = p.at(token)
    if not own > 0:
        return np.zeros(most)
    ids = np.arange(len(p.weights)) if p.ids is None else p.ids
    rank = np.count_nonzero((p.weights > own) | ((p.weights == own) & (ids < token)))
    return (rank < np.arange(1, most + 1)).astype(np.float64)


def drawn_siblings(
    p: HostRow, q: HostRow, token: int, most: int, random: np.random.Generator, *, replaced: bool
) -> Floats:
    """Estimate [most] the chance that one of 1, 2... siblings is the token and stands (recursive rejection).

    Args:
        p: the draft's row; siblings are drawn from it.
        q: the target's row, which the token was drawn from; of a token that rounding moved out of it, every
            sibling that can be drawn counts.
        replaced: whether siblings are drawn independently, and not without replacement.
    """
    own = p.at(token), q.at(token)
    if not own[1]:
        return np.full(most, float(own[0] > 0))
    paths = 1 if replaced or most <= 2 else _PATHS
    drawn = [_one_path(*_together(p, q), own, most, random, replaced) for _ in range(paths)]
    return np.asarray(np.mean(drawn, axis=0))


def _one_path(
    p: Weights, q: Weights, own: tuple[float, float], most: int, random: np.random.Generator, replaced: bool
) -> Floats:
    """``drawn_siblings`` with one draw of the rejected ones; p, q: [m] over the tokens of both."""
    (own_p, own_q), chances, falls = own, np.ones(most), 1.0
    ratio = min(1.0, own_p / own_q)
    chances[0] = ratio
    for number in range(1, most):
        falls *= 1.0 - ratio
        over, under = np.maximum(p - q, 0.0), np.maximum(q - p, 0.0)
        if not own_p:
            chances[number:] = 1.0 - falls
            break
        if falls <= 0 or own_q <= own_p or not over.any():
            break
        q, own_q = under / under.sum(), (own_q - own_p) / under.sum()
        share = over / over.sum()
        if replaced:
            ratio = min(1.0, own_p / own_q)
            chances[number] = 1.0 - falls * (1.0 - ratio)
            continue
        rest = np.maximum(p.sum() - p, own_p)
        ratios = np.minimum(1.0, own_p / rest / own_q)
        chances[number] = 1.0 - falls * float(share @ (1.0 - ratios))
        rejected = int(random.choice(len(share), p=share))
        p, own_p, ratio = p / rest[rejected], own_p / float(rest[rejected]), float(ratios[rejected])
        p[rejected] = 0.0
    return chances


def _together(p: HostRow, q: HostRow) -> tuple[Weights, Weights]:
    """[m] both over the tokens that either supports, in float64."""
    if p.ids is None or q.ids is None:
        size = len(p.weights) if p.ids is None else len(q.weights)
        return p.spread(size).astype(np.float64), q.spread(size).astype(np.float64)
    ids = np.union1d(p.ids, q.ids)
    frame = HostRow(ids, np.zeros(len(ids)))
    return p.along(frame).astype(np.float64), q.along(frame).astype(np.float64)


def by_depth(chances: Floats, branching: Sequence[int]) -> Floats:
    """Return [n, depth] what ``text_loops.loops_over`` takes of a static tree.

    Args:
        chances: [n, B] that the text's token stands among 1 to B siblings.
        branching: how many there are, by depth; each at most B.
    """
    n = len(chances)
    padded = np.concatenate([chances, np.zeros((len(branching), chances.shape[1]))])
    ahead = np.arange(len(branching))
    by_depth_of_text: Floats = padded[np.arange(n)[:, None] + ahead, np.array(branching) - 1]
    return by_depth_of_text

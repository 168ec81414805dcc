"""The optimum of one place in closed form, against which the linear program is held."""

from __future__ import annotations

import numpy as np

from spsbench.base.arrays import Floats


def most_accepted(q: Floats, p: Floats, k: int, *, replaced: bool) -> float:
    """The most that one place can accept of k tokens drawn from the draft's row, with or without replacement.

    1 + min over sets H of q(H) - P(all k are in H) (Hu et al. 2025); 1 - TV for one token. The best H holds
    the tokens with the largest p/q.

    Args:
        q: [V] the target's row.
        p: [V] the draft's.
        k: siblings.
        replaced: whether each is drawn from the whole row.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, -1.0), kind="stable")
    inside_p, inside_q = np.cumsum(p[order]), np.cumsum(q[order])
    if replaced or k == 1:
        all_inside = inside_p**k
    else:
        all_inside = np.array([_none_outside(p[order[: n + 1]], k) for n in range(len(p))])
    return float(1.0 + min(0.0, (inside_q - all_inside).min()))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def _none_outside(inside: Floats, k: int) -> float:
    """Chance that k tokens drawn without replacement are all among some.

    Each token comes at an exponential time of its own rate; the first one outside must come after k inside.
    """
    outside = max(0.0, 1.0 - float(inside.sum()))
    if outside <= 1e-12:
        return 1.0
    # exp(-t outside) = w^8 maps the waiting time t of the first one outside to the unit interval, smoothly.
    w = (_NODES + 1) / 2
    came = -np.expm1(inside[:, None] * 8 * np.log(w)[None, :] / outside)
    fewer = np.zeros((k, len(w)))  # [j] the chance that exactly j of them came
    fewer[0] = 1.0
    for chance in came:
        fewer[1:] = fewer[1:] * (1 - chance) + fewer[:-1] * chance
        fewer[0] *= 1 - chance
    return float(((1.0 - fewer.sum(0)) * 8 * w**7 * _WEIGHTS / 2).sum())

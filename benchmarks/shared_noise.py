"""Exact laws of a sampler whose draft, test and replacement share their noise: results/reference/rulebook.md.

    python -m benchmarks.shared_noise [--tables 20]

One drafted token and the one after a rejection, in two conventions of drawing. By the inverse of the
cumulative distribution one number is cut into intervals, so that every law is a sum of lengths. By
exponential races (Gumbel noise: the token with the least E / probability, E exponential) two draws of the
same race have a joint law in closed form: with t the ratio of two tokens' times it is the integral of
1 / (sum over tokens of the larger of two lines in t)^2, which is done between the points where lines cross.
Nothing is drawn here. The tables are random (synthetic).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from benchmarks.rulebook import far, near

Floats = npt.NDArray[np.float64]

TESTS, REPLACES, REPLACED_BY_TEST, ALL = "draft tests", "draft replaces", "test replaces", "all"
SHARED = {
    "none": "",
    "draft's for the replacement": REPLACES,
    "draft's for the test": TESTS,
    "test's for the replacement": REPLACED_BY_TEST,
    "one for all three": ALL,
}
"""What is shared, as the tables call it."""


def residual(q: Floats, p: Floats) -> Floats:
    """[V] the law of a replacement; the target's where no token can be rejected."""
    rest = np.maximum(q - p, 0.0)
    return rest / rest.sum() if rest.any() else q


def by_inverse(q: Floats, p: Floats, shared: str) -> Floats:
    """[V] the law of the tested token where tokens are drawn by the inverse of the cumulative distribution.

    Args:
        q: [V] the target's row.
        p: [V] the draft's row.
        shared: one of ``SHARED``'s values.
    """
    law, rest = np.zeros(len(q)), residual(q, p)
    drafts, replacements = _intervals(p), _intervals(rest)
    for x in np.flatnonzero(p).tolist():
        least = min(1.0, q[x] / p[x])
        stands, falls = least, np.array([1.0 - least])
        low, high = drafts[x]
        if shared in (TESTS, ALL):  # accepted where the number that drew x is below the limit
            stands = float(_overlap(low, high, 0.0, least)) / (high - low)
        law[x] += p[x] * stands
        if shared in (REPLACES, ALL):  # the number is known to draw x, and to fail if it tested
            edge = least if shared == ALL else 0.0
            inside = _overlap(max(low, edge), high, *replacements.T)
            law += inside * (1.0 if shared == ALL else falls)
        elif shared == REPLACED_BY_TEST:
            law += p[x] * _overlap(least, 1.0, *replacements.T)
        else:
            law += p[x] * (1.0 - stands) * rest
    return law


def _intervals(row: Floats) -> Floats:
    """[V, 2] the numbers that draw each token."""
    edges = np.concatenate([[0.0], row.cumsum() / row.sum()])
    return np.stack([edges[:-1], edges[1:]], 1)


def _overlap(low: float, high: float, start: Floats | float, end: Floats | float) -> Floats:
    return np.asarray(np.maximum(0.0, np.minimum(high, end) - np.maximum(low, start)))


def by_race(q: Floats, p: Floats, shared: str) -> Floats:
    """[V] the same where tokens are drawn by exponential races.

    A test's number is exp(-E) of the drafted token where it is the draft's or the replacement's.
    """
    rest, law = residual(q, p), np.zeros(len(q))
    for x in np.flatnonzero(p).tolist():
        least = min(1.0, q[x] / p[x])
        # Of the winner E is p(x) times the race's time, which has the standard law whoever wins.
        stands = least ** (1.0 / p[x]) if shared in (TESTS, ALL) and least > 0 else least
        law[x] += p[x] * stands
        if stands == 1.0:
            continue
        if shared == REPLACES:
            law += (1.0 - least) * raced_twice(p, rest, x, np.inf)
        elif shared == ALL:
            law += raced_twice(p, rest, x, np.inf if least == 0 else -np.log(least))
        else:  # the rejected token cannot come again, so that its own E decides no replacement
            law += p[x] * (1.0 - stands) * rest
    return law


def raced_twice(p: Floats, r: Floats, x: int, limit: float) -> Floats:
    """[V] the chance that one race is won by x under p, by each token under r, and that E of x is below."""
    found = np.zeros(len(p))
    for y in np.flatnonzero(r).tolist():
        own, other = p / p[x], r / r[y]
        low = own[y]
        high = np.inf if other[x] == 0 else 1.0 / other[x]
        if y == x:  # of no rival E is below that of x times the larger ratio
            found[y] = _tail(float(np.maximum(own, other).sum()), limit)
            continue
        if low >= high:
            continue
        rivals = [i for i in range(len(p)) if i not in (x, y)]
        cross = sorted({own[i] / other[i] for i in rivals if other[i] > 0 and low < own[i] / other[i] < high})
        edges = [low, *cross, high]
        for start, end in pairwise(edges):
            middle = start + 1.0 if end == np.inf else (start + end) / 2
            slower = [i for i in rivals if other[i] * middle > own[i]]
            a = 1.0 + sum(own[i] for i in rivals if i not in slower)
            b = 1.0 + sum(other[i] for i in slower)
            found[y] += (_tail(a + b * start, limit) - _tail(a + b * end, limit)) / b
    return found


def _tail(d: float, limit: float) -> float:
    """The integral from d on of (1 - (1 + limit D) exp(-limit D)) / D^2."""
    if d == np.inf:
        return 0.0
    return (1.0 if limit == np.inf else -np.expm1(-limit * d)) / d


LAWS: dict[str, Callable[[Floats, Floats, str], Floats]] = {"inverse": by_inverse, "race": by_race}


def variation(law: Floats, q: Floats) -> float:
    """Total variation of two laws [V]."""
    return float(np.abs(law - q).sum()) / 2


def rows_of(seed: int, vocab_size: int, family: str) -> tuple[Floats, Floats]:
    """The first rows of one of the rulebook's tables."""
    target, draft = (near if family == "near" else far)(seed, vocab_size)
    return np.array(target((0,))), np.array(draft((0,)))


def main() -> None:
    """Print mean and largest total variation by what is shared and by V."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=20)
    count = parser.parse_args().tables
    sizes = (3, 8, 64)
    heads = " | ".join(f"{family}, V = {size}" for family in ("near", "far") for size in sizes)
    print(f"| shared | drawn by | {heads} |\n| :-- | :-- |{' --: |' * 2 * len(sizes)}")
    for (name, shared), (convention, law) in product(SHARED.items(), LAWS.items()):
        cells = []
        for family, size in product(("near", "far"), sizes):
            rows = [rows_of(seed, size, family) for seed in range(count)]
            apart = [variation(law(q, p, shared), q) for q, p in rows]
            cells.append(f"{np.mean(apart):.2g} ({max(apart):.2g})")
        print(f"| {name} | {convention} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""The exact law of the next two tokens where drafts that stayed short are dropped, by enumeration.

    python llama-cpp-short-drafts-law.py [--p-min 0.6] [--tables 20]

Three tokens, K = 3, random rows that follow from the last token (synthetic). A draft is drawn until the
most probable token of its row is below p_min. "as released" drops a draft of fewer than n_min tokens,
whatever it is; "mended" keeps it, since it was drawn. Printed is the total variation between the law of the
next two tokens and the target's: the largest of all tables, and at how many it is above 1e-12.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
V, K, TOKENS = 3, 3, 2


def drafts(row: Floats, last: int, p_min: float, k: int) -> list[tuple[float, tuple[int, ...]]]:
    """(probability, tokens) of every draft that may be drawn after a token."""
    if k == 0 or row[last].max() < p_min:
        return [(1.0, ())]
    return [
        (row[last, x] * chance, (x, *rest)) for x in range(V) for chance, rest in drafts(row, x, p_min, k - 1)
    ]


def loop(
    target: Floats, draft: Floats, last: int, tokens: tuple[int, ...]
) -> list[tuple[float, tuple[int, ...]]]:
    """(probability, emitted tokens) of modified rejection over a draft."""
    found, stands, before = list[tuple[float, tuple[int, ...]]](), 1.0, last
    for place, x in enumerate(tokens):
        kept = min(1.0, target[before, x] / draft[before, x])
        rest = np.maximum(target[before] - draft[before], 0.0)
        if kept < 1:
            found += [(stands * (1 - kept) * rest[y] / rest.sum(), (*tokens[:place], y)) for y in range(V)]
        stands, before = stands * kept, x
    return found + [(stands * target[before, y], (*tokens, y)) for y in range(V)]


def law(target: Floats, draft: Floats, p_min: float, n_min: int, *, mended: bool) -> Floats:
    """[V, V] of the two tokens after token 0; a loop that emits one is followed by another."""
    found = np.zeros((V,) * TOKENS)

    def go_on(chance: float, text: tuple[int, ...]) -> None:
        if len(text) >= TOKENS:
            found[text[:TOKENS]] += chance
            return
        last = text[-1] if text else 0
        for drawn, tokens in drafts(draft, last, p_min, K):
            stands = tokens if mended or len(tokens) >= n_min else ()
            for more, emitted in loop(target, draft, last, stands):
                go_on(chance * drawn * more, (*text, *emitted))

    go_on(1.0, ())
    return found


def main() -> None:
    """Print both laws' distances for each n_min."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--p-min", type=float, default=0.6)
    parser.add_argument("--tables", type=int, default=20)
    given = parser.parse_args()
    dice = np.random.default_rng(0)
    pairs = [[dice.dirichlet(np.full(V, 0.7), V) for _ in range(2)] for _ in range(given.tables)]
    for n_min, mended in product(range(K + 1), (False, True)):
        apart = []
        for target, draft in pairs:
            right = target[0][:, None] * target
            apart.append(abs(law(target, draft, given.p_min, n_min, mended=mended) - right).sum() / 2)
        off = sum(each > 1e-12 for each in apart)
        name = "mended" if mended else "as released"
        print(f"n_min {n_min}, {name}: at most {max(apart):.2g}, off at {off} of {len(pairs)} tables")


if __name__ == "__main__":
    main()

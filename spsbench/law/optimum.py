"""The most tokens per loop that any lossless rule can take from a draft: what a rule is measured against.

A rule sees a draft and the target's rows. It is lossless if what it emits, continued by the target, has the
target's law. Which nodes stand and what is drawn is then a transport from drafts to texts; a linear program
finds the best one (small vocabularies). Of one place with one or several drafts it is known in closed form,
of a chain it is block verification's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, islice, product
from typing import Any

import numpy as np

from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import Rows

Tree = tuple[tuple[int, "Tree"], ...]
"""The nodes of a place, each a token with what is below it."""

Texts = Mapping[tuple[int, ...], float]
"""Of the target: the probability of each text of some length."""


def most_tokens(drafts: Mapping[Tree, float], target: Texts, vocab_size: int) -> float:
    """Return tokens per loop of the best lossless rule.

    Args:
        drafts: the probability of each draft.
        target: the law of the next depth + 1 tokens, where depth is that of the deepest draft.
        vocab_size: V.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    chance = _prefixes(target)
    texts = {text: row for row, text in enumerate(target)}
    length = max(map(len, target))
    # Unknown: how often a draft ends in an emitted text. A row for each whole text, where the parts of its
    # probability over that of each beginning must add up to 1, and one for each draft.
    rows, columns, shares, gains = list[int](), list[int](), list[float](), list[float]()
    for number, tree in enumerate(drafts):
        for begun in sorted(
            {(*text, token) for text in _texts_that_may_stand(tree) for token in range(vocab_size)}
        ):
            if chance.get(begun, 0.0) > 0:
                whole = [begun + rest for rest in product(range(vocab_size), repeat=length - len(begun))]
                reached = [texts[text] for text in whole if text in texts]
                rows += [*reached, len(texts) + number]
                columns += [len(gains)] * (len(reached) + 1)
                shares += [*[1 / chance[begun]] * len(reached), 1.0]
                gains.append(-float(len(begun)))
    wanted = [*[1.0] * len(texts), *drafts.values()]
    system: Any = coo_matrix(
        (np.array(shares), (np.array(rows), np.array(columns))), shape=(len(wanted), len(gains))
    )
    solution: Any = linprog(gains, A_eq=system.tocsr(), b_eq=wanted, method="highs")
    if solution.status != 0:
        raise ArithmeticError(f"the linear program has no solution: {solution.message}")
    return -float(solution.fun)


def _prefixes(target: Texts) -> dict[tuple[int, ...], float]:
    chance: dict[tuple[int, ...], float] = defaultdict(float)
    for text, probability in target.items():
        for end in range(1, len(text) + 1):
            chance[text[:end]] += probability
    return chance


def _texts_that_may_stand(tree: Tree, before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """None, and down to each node."""
    yield before
    for token, below in tree:
        yield from _texts_that_may_stand(below, (*before, token))


def most_of_chain(ratios: Iterable[float]) -> float:
    """The accepted tokens that the best lossless rule expects of a drafted chain (Sun et al. 2024).

    The sum of w_i = min(1, w_{i-1} q_i/p_i), w_0 = 1: block verification accepts i or more with probability
    w_i. NaN where a ratio is.

    Args:
        ratios: q_i/p_i, the target's over the draft's probability of each drafted token.
    """
    # In this order: min gives its first argument where that is NaN.
    chances = accumulate(ratios, lambda chance, ratio: min(chance * ratio, 1.0), initial=1.0)
    return sum(islice(chances, 1, None), 0.0)


def most_of_certain(q: Rows, draft: Draft, end_ids: Collection[int] = ()) -> float:
    """Accepted tokens that the best lossless rule expects of a tree whose tokens were certain.

    The sum over nodes of the target's probability of the tokens down to each: what stands is a prefix of
    the target's own text. Nodes below one of ``end_ids`` do not count.

    Args:
        q: n + 1 target rows: behind the pending token, and behind each node.
        draft: n tokens, siblings all different, and their parents.
        end_ids: tokens that end the output.
    """
    chances = [1.0]
    for token, parent in zip(draft.tokens.tolist(), draft.above, strict=True):
        ended = parent != ROOT and int(draft.tokens[parent]) in end_ids
        chances.append(0.0 if ended else chances[parent + 1] * q.probability(parent + 1, token))
    return sum(chances[1:])

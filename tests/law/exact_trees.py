"""Tree rules a second time, in exact arithmetic: a rule gives chances, not verdicts.

Nothing of the package is used. A tree is a tuple of siblings (token, the row that it was drawn from or None,
what is below it); rows are tuples of fractions by context.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

Row = tuple[Fraction, ...]
Rows = Callable[[tuple[int, ...]], Row]
Tree = tuple[tuple[int, Row | None, Any], ...]
Law = dict[tuple[int, ...], Fraction]
Rule = Callable[[Rows, tuple[int, ...], Tree], Law]

ONE, NOTHING = Fraction(1), Fraction(0)


def over_sum(weights: Sequence[Fraction]) -> Row:
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def table(vocab_size: int, seed: str, zeros: float = 0.0) -> Rows:
    """Random rows of small fractions; some tokens impossible."""
    known: dict[tuple[int, ...], Row] = {}

    def row(context: tuple[int, ...]) -> Row:
        if context not in known:
            numbers = random.Random(f"{seed} {context}")
            weights = [
                NOTHING if numbers.random() < zeros else Fraction(numbers.randint(1, 20))
                for _ in range(vocab_size)
            ]
            known[context] = over_sum(weights if any(weights) else [ONE, *weights[1:]])
        return known[context]

    return row


def siblings(p: Row, count: int, how: str) -> list[tuple[Fraction, tuple[tuple[int, Row | None], ...]]]:
    """The chance of each list of siblings, as they are drawn one after the other."""
    if count == 0:
        return [(ONE, ())]
    if how == "top":
        best = sorted((x for x in range(len(p)) if p[x]), key=lambda x: (-p[x], x))
        return [(ONE, tuple((x, None) for x in best[:count]))]
    found = []
    for x, chance in enumerate(p):
        rest = [weight if y != x else NOTHING for y, weight in enumerate(p)]
        if how == "independent":
            later = siblings(p, count - 1, how)
        else:
            later = siblings(over_sum(rest), count - 1, how) if any(rest) else [(ONE, ())]
        found += [(chance * c, ((x, p), *others)) for c, others in later if chance]
    return found


def trees(
    p: Rows, context: tuple[int, ...], branching: Sequence[int], how: str
) -> list[tuple[Fraction, Tree]]:
    if not branching:
        return [(ONE, ())]
    found: list[tuple[Fraction, Tree]] = []
    for chance, drawn in siblings(p(context), branching[0], how):
        grown: list[tuple[Fraction, Tree]] = [(chance, ())]
        for token, row in drawn:
            below = trees(p, (*context, token), branching[1:], how)
            grown = [(a * b, (*tree, (token, row, under))) for a, tree in grown for b, under in below]
        found += grown
    return found


def _mass_of(token: int, row: Row | None, size: int) -> Row:
    return tuple(Fraction(int(x == token)) for x in range(size)) if row is None else row


def _less(q: Row, p: Row, scale: Fraction = ONE) -> tuple[Row, Fraction]:
    """((scale q - p)+ over its sum, that sum); q itself where nothing is left."""
    left = [max(scale * a - b, NOTHING) for a, b in zip(q, p, strict=True)]
    return (over_sum(left), sum(left)) if any(left) else (q, NOTHING)


def recursive(q: Rows, context: tuple[int, ...], tree: Tree, *, certain: bool = False) -> Law:
    found: Law = defaultdict(Fraction)
    left, reached = q(context), ONE
    for token, row, below in tree:
        p = _mass_of(token, None if certain else row, len(left))
        stands = min(ONE, left[token] / p[token])
        for text, chance in recursive(q, (*context, token), below, certain=certain).items():
            found[(token, *text)] += reached * stands * chance
        reached *= 1 - stands
        left, _ = _less(left, p)
    for token, chance in enumerate(left):
        found[(token,)] += reached * chance
    return found


def one_hot(q: Rows, context: tuple[int, ...], tree: Tree) -> Law:
    return recursive(q, context, tree, certain=True)


def compare(q: Rows, context: tuple[int, ...], tree: Tree) -> Law:
    found: Law = defaultdict(Fraction)
    for token, chance in enumerate(q(context)):
        below = next((under for sibling, _, under in tree if sibling == token), None)
        if below is None:
            found[(token,)] += chance
        else:
            for text, later in compare(q, (*context, token), below).items():
                found[(token, *text)] += chance * later
    return found


def traversal(q: Rows, context: tuple[int, ...], tree: Tree) -> Law:
    return _traversal(q, context, tree, ONE)[0]


def _traversal(q: Rows, context: tuple[int, ...], tree: Tree, may: Fraction) -> tuple[Law, Fraction]:
    """(what is emitted from here on, the chance that nothing here stands)."""
    found: Law = defaultdict(Fraction)
    left, reached = q(context), ONE
    for token, row, below in tree:
        p = _mass_of(token, row, len(left))
        law, fell = _traversal(q, (*context, token), below, min(ONE, may * left[token] / p[token]))
        for text, chance in law.items():
            found[(token, *text)] += reached * chance
        reached *= fell
        left, mass = _less(left, p, may)
        may = mass / (mass + 1 - may) if mass + 1 > may else ONE
    for token, chance in enumerate(left):
        found[(token,)] += reached * may * chance
    return found, reached * (1 - may)


def block(q: Rows, context: tuple[int, ...], tree: Tree) -> Law:
    """Sun et al. 2024, Algorithm 2, as it is written: prefixes of a chain from the shortest on."""
    tokens, rows = list[int](), list[Row]()
    while tree:
        ((token, row, tree),) = tree
        rows.append(_mass_of(token, row, len(q(context))))
        tokens.append(token)
    may, stands, left = ONE, list[Fraction](), list[Row]()
    for i in range(len(tokens) + 1):
        own = q((*context, *tokens[:i]))
        if i == len(tokens):
            stands.append(may)
            left.append(own)
            break
        rest, mass = _less(own, rows[i], may)
        stands.append(mass / (mass + 1 - may) if mass + 1 > may else ONE)
        left.append(rest)
        may = min(ONE, may * own[tokens[i]] / rows[i][tokens[i]])
    found: Law = defaultdict(Fraction)
    reached = ONE
    for i in reversed(range(len(tokens) + 1)):
        chance = stands[i] if i else ONE
        for token, weight in enumerate(left[i]):
            found[(*tokens[:i], token)] += reached * chance * weight
        reached *= 1 - chance
    return found


def k_seq(q: Rows, context: tuple[int, ...], tree: Tree) -> Law:
    """With a scale a little above the least one: the law is the same, and a few tokens less stand."""
    found: Law = defaultdict(Fraction)
    own = q(context)
    if not tree:
        return {(token,): chance for token, chance in enumerate(own)}
    p, k = _mass_of(*tree[0][:2], len(own)), len(tree)

    def shared(scale: Fraction) -> Fraction:
        return sum((min(a, b / scale) for a, b in zip(p, own, strict=True)), NOTHING)

    low, high = ONE, Fraction(k)
    for _ in range(20 if k > 1 else 0):
        middle = (low + high) / 2
        beta = shared(middle)
        low, high = (low, middle) if 1 - (1 - beta) ** k <= middle * beta else (middle, high)
    beta, reached = shared(high), ONE
    for token, _, below in tree:
        stands = min(ONE, own[token] / (high * p[token]))
        for text, chance in k_seq(q, (*context, token), below).items():
            found[(token, *text)] += reached * stands * chance
        reached *= 1 - stands
    taken = (1 - (1 - beta) ** k) / beta if beta else NOTHING
    left = [b - taken * min(a, b / high) for a, b in zip(p, own, strict=True)]
    assert min(left) >= 0
    for token, weight in enumerate(over_sum(left) if any(left) else own):
        found[(token,)] += reached * weight
    return found


def law(p: Rows, q: Rows, branching: Sequence[int], how: str, rule: Rule) -> Law:
    """What one loop emits."""
    found: Law = defaultdict(Fraction)
    for chance, tree in trees(p, (), branching, how):
        for text, later in rule(q, (), tree).items():
            found[text] += chance * later
    return {text: chance for text, chance in found.items() if chance}


def completed(q: Rows, emitted: Law, length: int) -> Law:
    """Each text continued by the target to a length."""
    found: Law = defaultdict(Fraction)
    for text, chance in emitted.items():
        if len(text) == length:
            found[text] += chance
        else:
            longer = {(*text, token): chance * weight for token, weight in enumerate(q(text)) if weight}
            for whole, share in completed(q, longer, length).items():
                found[whole] += share
    return dict(found)


def tokens_of(emitted: Law) -> float:
    """Expected number of tokens."""
    return float(sum(len(text) * chance for text, chance in emitted.items()))

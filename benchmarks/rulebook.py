"""Exact tokens per loop of every rule, and its share of the optimum: results/reference/rulebook.md.

    python -m benchmarks.rulebook [--tables 5] [--disputes | --drafts]

--disputes prints the law of the first token of one table instead, rule by rule and fault by fault; --drafts
how far ways to draft are off that look alike, with K = 3.

By enumeration through the production loop: nothing is drawn or timed. Random tables (synthetic); a
number is a mean over tables of one family.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode import trees
from spsbench.decode.rejection import Accept, accept_draft
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import ModelTreeDrafter, Siblings
from spsbench.law.enumeration import (
    EXACT,
    RowFunction,
    Scene,
    TableModel,
    TableTree,
    law_of_drafts,
    law_of_loop,
    random_rows,
    target_law,
    worst_difference,
)
from spsbench.law.optimum import most_tokens
from spsbench.parts.verify import draft_faults
from spsbench.parts.verify.tree_faults import FAULTS, Fault

RULES: dict[str, tuple[Accept, Sequence[Siblings]]] = {
    "sample-and-compare": (trees.compare, ("without", "top")),
    "one-hot": (trees.one_hot, ("without", "independent", "top")),
    "recursive-rejection": (trees.recursive_rejection, ("without", "independent")),
    "k-seq": (trees.k_seq, ("independent",)),
    "traversal": (trees.traversal, ("without", "independent")),
}
VOCABULARY = 3
SHAPES = ((1, 1), (2,), (2, 1))
PLAIN = SamplingParams()


def near(seed: int, vocab_size: int) -> tuple[RowFunction, RowFunction]:
    """A draft that mixes the target's row with one of its own."""
    q, other = far(seed, vocab_size)
    return q, lambda context: [0.7 * a + 0.3 * b for a, b in zip(q(context), other(context), strict=True)]


def far(seed: int, vocab_size: int) -> tuple[RowFunction, RowFunction]:
    """Two models that know nothing of each other."""
    return random_rows(vocab_size, 2 * seed), random_rows(vocab_size, 2 * seed + 1)


def peaked(seed: int, vocab_size: int) -> tuple[RowFunction, RowFunction]:
    """As near, with rows that are nearly certain."""
    q, other = (random_rows(vocab_size, 2 * seed + one, sharpness=3.0) for one in (0, 1))
    return q, lambda context: [0.7 * a + 0.3 * b for a, b in zip(q(context), other(context), strict=True)]


def main() -> None:
    """Enumerate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--disputes", action="store_true")
    parser.add_argument("--drafts", action="store_true")
    given = parser.parse_args()
    if given.disputes:
        disputes(given.tables)
    elif given.drafts:
        drafts(given.tables)
    else:
        tables(given.tables)


def tables(count: int) -> None:
    """A row for each rule and way of drafting."""
    families = (near, far, peaked)
    heads = " | ".join(f"{family.__name__}: tokens, share" for family in families)
    print(f"| tree | siblings | rule | worst law | {heads} |")
    print(f"| :-- | :-- | :-- | --: |{' --: |' * len(families)}")
    for branching, (rule, (accept, ways)) in product(SHAPES, RULES.items()):
        for siblings in ways if max(branching) > 1 else ways[:1]:
            cells, worst = [], 0.0
            for family in families:
                made = [
                    _scene(accept, siblings, branching, *family(seed, VOCABULARY)) for seed in range(count)
                ]
                tokens = float(np.mean([_tokens(scene) for scene in made]))
                best = float(np.mean([_best(scene, branching) for scene in made]))
                worst = max(worst, *(worst_difference(scene).size for scene in made))
                cells.append(f"{tokens:.3f}, {_share(tokens, best)}")
            drawn = siblings if max(branching) > 1 else "-"
            print(
                f"| {_shape(branching)} | {drawn} | {rule} | {worst:.0e} | {' | '.join(cells)} |", flush=True
            )


def disputes(count: int) -> None:
    """The law of the first two tokens under each rule and fault: on one table, and the worst of several."""
    target = _scene(trees.one_hot, "top", (2,), *far(0, VOCABULARY))
    law = target_law(target, target.prompt, 1)
    tokens = " | ".join(f"token {x}" for x in range(VOCABULARY))
    print(f"| rule | tree | siblings | {tokens} | tables off | TV |")
    print(f"| :-- | :-- | :-- |{' --: |' * (VOCABULARY + 2)}")
    print(f"| the target | | | {' | '.join(f'{law[(x,)]:.4f}' for x in range(VOCABULARY))} | | |")
    for rule, (accept, ways) in RULES.items():
        for siblings in ways:
            _disputed(rule, Fault(accept, siblings, (2,)), count)
    for name, fault in FAULTS.items():
        _disputed(f"FAULT: {name}", fault, count)


def drafts(count: int) -> None:
    """How far the law of each right and each wrong way to draft is off, judged by modified rejection."""
    print("| draft | tables off | TV |\n| :-- | --: | --: |")
    named = [
        *draft_faults.RIGHT.items(),
        *((f"FAULT: {name}", of) for name, of in draft_faults.FAULTS.items()),
    ]
    for name, of in named:
        apart = [worst_difference(_chain(of, seed)).variation for seed in range(count)]
        off = sum(size > EXACT for size in apart)
        print(f"| {name} | {off} of {count} | {min(apart):.2g} to {max(apart):.2g} |", flush=True)


def _chain(of: draft_faults.Drafts, seed: int, k: int = 3) -> Scene:
    target, draft = (TableModel(rows, VOCABULARY) for rows in far(seed, VOCABULARY))
    kind = draft_faults.drafter_of(of)
    return Scene(target, lambda: kind(draft, PLAIN, torch.device("cpu")), accept_draft, (0,), k, PLAIN)


def _disputed(name: str, fault: Fault, count: int) -> None:
    scenes = [
        _scene(fault.rule, fault.siblings, fault.branching, *far(seed, VOCABULARY), fault.drafter)
        for seed in range(count)
    ]
    apart = [worst_difference(scene).variation for scene in scenes]
    first: dict[int, float] = defaultdict(float)
    for text, chance in law_of_loop(scenes[0]).items():
        first[text[0]] += chance
    cells = " | ".join(f"{first[x]:.4f}" for x in range(VOCABULARY))
    off = sum(size > EXACT for size in apart)
    print(
        f"| {name} | {_shape(fault.branching)} | {fault.siblings} | {cells} | {off} of {count} "
        f"| {min(apart):.2g} to {max(apart):.2g} |",
        flush=True,
    )


def _shape(branching: Sequence[int]) -> str:
    return ",".join(map(str, branching))


def _share(tokens: float, best: float) -> str:
    """Of what the optimum gains over one token a loop."""
    return f"{(tokens - 1) / (best - 1):.1%}"


def _scene(
    accept: Accept,
    siblings: Siblings,
    branching: Sequence[int],
    target: RowFunction,
    draft: RowFunction,
    drafter: type[ModelTreeDrafter] = ModelTreeDrafter,
) -> Scene:
    size = len(target((0,)))
    return Scene(
        TableModel(target, size),
        lambda: drafter(TableTree(TableModel(draft, size)), PLAIN, Shape(tuple(branching)), siblings),
        accept,
        (0,),
        Shape(tuple(branching)).nodes,
        PLAIN,
        depth=len(branching),
    )


def _tokens(scene: Scene) -> float:
    return sum(len(text) * chance for text, chance in law_of_loop(scene).items())


def _best(scene: Scene, branching: Sequence[int]) -> float:
    """The optimum for the law of these drafts, which is counted through the drafter."""
    target = target_law(scene, scene.prompt, len(branching) + 1)
    return most_tokens(law_of_drafts(scene), target, scene.target.vocab_size)


if __name__ == "__main__":
    with torch.inference_mode():
        main()

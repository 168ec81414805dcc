"""Tree rules: the target's law by enumeration through the production loop, and by a second enumeration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import trees
from spsbench.decode.algorithms import DecodedLoop, start_tree
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import Accept, Draft
from spsbench.decode.sampling import ScriptedUniforms
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import ModelTreeDrafter, Siblings
from spsbench.law.enumeration import (
    EXACT,
    RowFunction,
    Scene,
    TableModel,
    TableTree,
    law_of_loop,
    random_rows,
    worst_difference,
)
from spsbench.law.optimum import most_tokens
from spsbench.parts.verify.tree_faults import FAULTS
from tests.law import exact_trees as exact
from tests.law.one_place import most_accepted

PLAIN, GREEDY = SamplingParams(), SamplingParams(greedy=True)
RULES: dict[str, tuple[Accept, exact.Rule]] = {
    "recursive-rejection": (trees.recursive_rejection, exact.recursive),
    "one-hot": (trees.one_hot, exact.one_hot),
    "sample-and-compare": (trees.compare, exact.compare),
    "traversal": (trees.traversal, exact.traversal),
    "k-seq": (trees.k_seq, exact.k_seq),
}
SIBLINGS: tuple[Siblings, ...] = ("without", "independent", "top")
WITH = [
    (rule, siblings)
    for rule in RULES
    for siblings in SIBLINGS
    # The one needs siblings that differ, the other those of one law.
    if (rule, siblings) != ("sample-and-compare", "independent")
    and (rule != "k-seq" or siblings == "independent")
]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def nodes_of(branching: Sequence[int]) -> int:
    return sum(accumulate(branching, mul))


def scene(
    rule: Accept,
    siblings: Siblings,
    branching: Sequence[int],
    target: RowFunction,
    draft: RowFunction,
    sampling: SamplingParams = PLAIN,
    make: Callable[..., Any] = ModelTreeDrafter,
) -> Scene:
    size = len(target((0,)))
    model = TableModel(draft, size)
    return Scene(
        TableModel(target, size),
        lambda: make(TableTree(model), sampling, Shape(tuple(branching)), siblings),
        rule,
        (0,),
        nodes_of(branching),
        sampling,
        depth=len(branching),
    )


def random_scene(
    rule: Accept, siblings: Siblings, branching: Sequence[int], seed: int, vocab_size: int = 3, **given: Any
) -> Scene:
    target, draft = (random_rows(vocab_size, 2 * seed + one, sharpness=1.5) for one in (0, 1))
    return scene(rule, siblings, branching, target, draft, **given)


def is_the_targets(seed: int, branching: Sequence[int], rule: str, siblings: Siblings, size: int = 3) -> None:
    worst = worst_difference(random_scene(RULES[rule][0], siblings, branching, seed, size))
    assert worst.size < EXACT, worst


@pytest.mark.thorough_but("[0-branching0", "[0-branching1")
@pytest.mark.soak_but("[0-branching0", "[0-branching1", "pairs")
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize("branching", [(2,), (1, 1)])
@pytest.mark.parametrize("seed", range(6))
def test_the_law_is_the_targets(seed: int, branching: Sequence[int], rule: str, siblings: Siblings) -> None:
    """Of each rule and its siblings on two tables more in the test of a second enumeration."""
    is_the_targets(seed, branching, rule, siblings)


@pytest.mark.soak
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize("branching", [(2,), (1, 1)])
@pytest.mark.parametrize("seed", range(6, 20))
def test_the_law_on_more_tables(seed: int, branching: Sequence[int], rule: str, siblings: Siblings) -> None:
    is_the_targets(seed, branching, rule, siblings)


@pytest.mark.thorough
def test_the_law_of_two_branches_is_the_targets() -> None:
    """Of the others a second enumeration says the same, exactly; of this one within its search."""
    is_the_targets(0, (2, 1), "k-seq", "independent")


@pytest.mark.soak
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize("seed", range(20))
def test_the_law_of_two_branches_on_more_tables(seed: int, rule: str, siblings: Siblings) -> None:
    is_the_targets(seed, (2, 1), rule, siblings)


@pytest.mark.soak
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize(("branching", "size"), [((3,), 4), ((1, 2), 3), ((1, 1, 1), 3)])
def test_the_law_of_wider_and_deeper_trees(
    branching: Sequence[int], size: int, rule: str, siblings: Siblings
) -> None:
    is_the_targets(1, branching, rule, siblings, size)


def test_siblings_without_replacement_are_no_more_than_the_vocabulary_has() -> None:
    asked = random_scene(trees.recursive_rejection, "without", (4,), 1)
    worst = worst_difference(asked)
    assert worst.size < EXACT
    assert worst.drafted == {3}


ODD: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "the draft is certain": ((0.5, 0.25, 0.25), (0.0, 1.0, 0.0)),
    "the target is certain": ((0.0, 1.0, 0.0), (0.5, 0.25, 0.25)),
    "nothing shared": ((0.5, 0.5, 0.0), (0.0, 0.0, 1.0)),
    "equal": ((0.5, 0.25, 0.25), (0.5, 0.25, 0.25)),
    "ties": ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.5, 0.0)),
    "zeros": ((0.75, 0.0, 0.25), (0.25, 0.75, 0.0)),
}


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize("rows", ODD)
def test_the_law_of_odd_rows(rows: str, rule: str, siblings: Siblings) -> None:
    target, draft = ODD[rows]
    for sampling in (PLAIN, GREEDY, SamplingParams(top_p=0.6)):
        for branching in ((2,), (1, 1)):
            odd = scene(RULES[rule][0], siblings, branching, lambda _: target, lambda _: draft, sampling)
            assert worst_difference(odd).size < EXACT


@pytest.mark.thorough_but("[0-branching0", "[0-branching1")
@pytest.mark.parametrize(("rule", "siblings"), WITH)
@pytest.mark.parametrize("branching", [(2,), (1, 1), (2, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_a_second_enumeration_gives_the_same(
    seed: int, branching: Sequence[int], rule: str, siblings: Siblings
) -> None:
    """In fractions, by code that shares nothing: it is the target's law, and what the loop emits."""
    accept, again = RULES[rule]
    q, p = (exact.table(3, f"{name}{seed}", zeros=0.2) for name in "qp")
    emitted = exact.law(p, q, branching, siblings, again)
    length = len(branching) + 1
    assert exact.completed(q, emitted, length) == exact.completed(q, {(): exact.ONE}, length)
    target, draft = (lambda c, rows=rows: tuple(map(float, rows(c[1:]))) for rows in (q, p))
    ours = law_of_loop(scene(accept, siblings, branching, target, draft))
    tolerance = 1e-5 if rule == "k-seq" else EXACT  # the scale that is searched for
    for text in emitted.keys() | ours:
        assert ours.get(text, 0.0) == pytest.approx(float(emitted.get(text, 0)), abs=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_traversal_of_a_chain_is_block_verification(seed: int) -> None:
    """As Sun et al. write it, from the shortest prefix on."""
    q, p = (exact.table(3, f"{name}{seed}") for name in "qp")
    for branching in ((1,), (1, 1), (1, 1, 1)):
        written = exact.law(p, q, branching, "independent", exact.block)
        assert written == exact.law(p, q, branching, "independent", exact.traversal)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    """On some of the tables: the token-wise residual is exact on many, so that one table proves nothing."""
    rule, siblings, branching, make = FAULTS[name]
    seeds = range(2) if nodes_of(branching) > 2 else range(8)

    def size(seed: int) -> float:
        return worst_difference(random_scene(rule, siblings, branching, seed, make=make)).size

    assert any(size(seed) > 1e-3 for seed in seeds)
    if name == "token-wise residual":
        assert any(size(seed) < EXACT for seed in seeds)


# The optimum.


def drafts_of(p: exact.Rows, branching: Sequence[int], siblings: str) -> dict[Any, float]:
    found: dict[Any, float] = defaultdict(float)

    def shape(tree: exact.Tree) -> Any:
        return tuple((token, shape(below)) for token, _, below in tree)

    for chance, tree in exact.trees(p, (), branching, siblings):
        found[shape(tree)] += float(chance)
    return dict(found)


def best_and_taken(
    seed: int, branching: Sequence[int], siblings: str, rule: exact.Rule
) -> tuple[float, float]:
    q, p = (exact.table(3, f"{name}{seed}", zeros=0.1) for name in "qp")
    target = {
        text: float(chance)
        for text, chance in exact.completed(q, {(): exact.ONE}, len(branching) + 1).items()
    }
    best = most_tokens(drafts_of(p, branching, siblings), target, 3)
    return best, exact.tokens_of(exact.law(p, q, branching, siblings, rule))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_lossless_takes_more_of_a_chain_than_block_verification(seed: int) -> None:
    for branching in ((1,), (1, 1), (1, 1, 1)):
        best, taken = best_and_taken(seed, branching, "independent", exact.block)
        assert taken == pytest.approx(best, abs=1e-9)
        assert best_and_taken(seed, branching, "independent", exact.recursive)[1] <= taken + 1e-12


@pytest.mark.parametrize(("rule", "siblings"), WITH)
def test_no_rule_takes_more_than_the_optimum(rule: str, siblings: Siblings) -> None:
    for branching in ((2,), (2, 1)):
        best, taken = best_and_taken(0, branching, siblings, RULES[rule][1])
        assert taken <= best + 1e-9


def test_a_rule_that_is_not_lossless_may_take_more() -> None:
    """Negative control: all of the draft stands, and the optimum does not."""
    best, _ = best_and_taken(0, (1, 1), "independent", exact.recursive)
    assert best < 2.9


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("siblings", ["independent", "without"])
@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_of_one_place_is_the_linear_programs(seed: int, siblings: str, k: int) -> None:
    q, p = (exact.table(4, f"{name}{seed}", zeros=0.1) for name in "qp")
    texts = {text: float(chance) for text, chance in exact.completed(q, {(): exact.ONE}, 2).items()}
    best = most_tokens(drafts_of(p, (k,), siblings), texts, 4)
    row_q, row_p = (np.array([float(x) for x in rows(())]) for rows in (q, p))
    found = most_accepted(row_q, row_p, k, replaced=siblings == "independent")
    assert 1 + found == pytest.approx(best, abs=1e-9)
    if k == 1:
        assert found == pytest.approx(1 - np.abs(row_q - row_p).sum() / 2)


def test_equal_siblings_are_one_row_to_the_target() -> None:
    """And as many proposals: the loop's nodes are those of the draft."""
    scored: list[int] = []

    class Counting(TableTree):
        def score(self, nodes: Any) -> Tensor:
            scored.append(len(nodes))
            return super().score(nodes)

    rows = random_rows(3, 1)
    drafter = ModelTreeDrafter(TableTree(TableModel(rows, 3)), PLAIN, Shape((3,)), "independent")
    script = ScriptedUniforms([torch.full((7,), 0.5, dtype=torch.float64)])
    target = Counting(TableModel(rows, 3))
    begin = start_tree(target, drafter, (0,), 3, PLAIN, script, trees.recursive_rejection)
    loop: DecodedLoop = next(begin(Stopwatch(FakeClock())))
    assert loop.draft is not None
    assert (scored, len(loop.draft.tokens), len(loop.target_rows)) == ([2], 3, 4)


def test_a_tree_ends_where_k_does() -> None:
    drafter = ModelTreeDrafter(
        TableTree(TableModel(random_rows(3, 1), 3)), PLAIN, Shape((1, 1, 1)), "without"
    )
    drafter.begin((0,))
    for k in (1, 2, 3):
        assert len(drafter.draft([0], k, torch.full((k,), 0.5, dtype=torch.float64)).tokens) == k


@pytest.mark.parametrize("rule", [trees.recursive_rejection, trees.traversal, trees.k_seq])
def test_a_token_that_its_own_row_denies_is_judged_as_by_modified_rejection(rule: Accept) -> None:
    """A drafter may report another row than it drew from; that is found later, and is no crash."""
    told = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    for own, stands in ((0.5, 1), (0.0, 0)):
        q = torch.tensor([[own, 1 - own], [0.5, 0.5]], dtype=torch.float64)
        verdict = rule(q, Draft(torch.tensor([0]), told), torch.tensor([0.5, 0.5], dtype=torch.float64))
        assert int(verdict.accepted) == stands

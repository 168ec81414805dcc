"""What replay says of a tree's loops over a text is what the production loop does, outcome by outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
import torch

from spsbench.base.arrays import Floats
from spsbench.base.records import SamplingParams
from spsbench.decode import trees
from spsbench.decode.rejection import Accept
from spsbench.decode.rows import HostRow
from spsbench.decode.sampling import warp
from spsbench.drafters.tree import Siblings
from spsbench.law.enumeration import Scene, TableModel, law_of_loop, random_rows
from spsbench.law.siblings import by_depth, drawn_siblings, top_siblings
from spsbench.law.text_loops import loops_over
from tests.law.test_trees import RULES, scene

PLAIN = SamplingParams()
SAMPLINGS = (PLAIN, SamplingParams(greedy=True), SamplingParams(top_p=0.8), SamplingParams(top_k=2))
CERTAIN = ("one-hot", "sample-and-compare", "recursive-rejection", "traversal")
SHAPES = ((2,), (1, 1), (2, 1), (3,))
DRAWN: tuple[Siblings, ...] = ("without", "independent")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def tables(seed: int, size: int = 3) -> list[TableModel]:
    """Target and draft."""
    return [TableModel(random_rows(size, 2 * seed + one, sharpness=1.5), size) for one in (0, 1)]


def rows_along(model: TableModel, text: Sequence[int], sampling: SamplingParams) -> list[HostRow]:
    model.rollback(0)
    logits = model.score(torch.tensor([0, *text])[:-1], last=len(text))
    return [HostRow.of(row) for row in warp(logits, sampling).numpy()]


def tree_scene(
    rule: Accept, siblings: Siblings, branching: Sequence[int], seed: int, sampling: SamplingParams = PLAIN
) -> Scene:
    target, draft = (random_rows(3, 2 * seed + one, sharpness=1.5) for one in (0, 1))
    return scene(rule, siblings, branching, target, draft, sampling)


def chances(
    seed: int, siblings: str, text: Sequence[int], most: int, sampling: SamplingParams, later: int = 0
) -> tuple[float, Floats]:
    """(the target's probability of a text, [n, most] what stands at each place); rank ``later`` off."""
    q, p = (rows_along(model, text, sampling) for model in tables(seed))
    written = math.prod(row.at(token) for row, token in zip(q, text, strict=True))
    random = np.random.default_rng(0)
    found = []
    for p_row, q_row, token in zip(p, q, text, strict=True):
        if siblings == "top":
            own = top_siblings(p_row, token, most + later)[later:]
        else:
            own = drawn_siblings(p_row, q_row, token, most, random, replaced=siblings == "independent")
        found.append(own)
    return written, np.array(found)


def law_by_replay(
    seed: int, siblings: str, branching: Sequence[int], sampling: SamplingParams = PLAIN, later: int = 0
) -> dict[tuple[int, ...], float]:
    """The chance of what a loop emits: of the text, times that of the loop given the text."""
    law = {}
    for length in range(1, len(branching) + 2):
        for text in product(range(3), repeat=length):
            written, found = chances(seed, siblings, text, max(branching), sampling, later)
            ends = loops_over(by_depth(found, branching)).ends[0, 0]
            law[text] = written * ends[length - 1] if written else 0.0
    return law


def apart(ours: dict[tuple[int, ...], float], theirs: dict[tuple[int, ...], float]) -> float:
    return max(abs(ours.get(text, 0.0) - theirs.get(text, 0.0)) for text in ours | theirs)


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("rule", CERTAIN)
@pytest.mark.parametrize("branching", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_of_the_most_probable_tokens(seed: int, branching: Sequence[int], rule: str) -> None:
    """Also under traversal: what is accepted of point masses is as much as the text has of them."""
    found = law_of_loop(tree_scene(RULES[rule][0], "top", branching, seed))
    assert apart(law_by_replay(seed, "top", branching), found) < 1e-12


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("siblings", ["top", *DRAWN])
def test_under_each_sampling(siblings: Siblings, sampling: SamplingParams) -> None:
    found = law_of_loop(tree_scene(trees.recursive_rejection, siblings, (2, 1), 1, sampling))
    assert apart(law_by_replay(1, siblings, (2, 1), sampling), found) < 1e-12


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("siblings", DRAWN)
@pytest.mark.parametrize("branching", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_of_drawn_siblings(seed: int, branching: Sequence[int], siblings: Siblings) -> None:
    """Of three without replacement at V = 3 one rejected sibling is left: exact, too."""
    found = law_of_loop(tree_scene(trees.recursive_rejection, siblings, branching, seed))
    assert apart(law_by_replay(seed, siblings, branching), found) < 1e-12


@pytest.mark.parametrize("siblings", ["top", "without"])
def test_a_rank_or_a_sibling_off_is_noticed(siblings: Siblings) -> None:
    """The control: one sibling more, and for the most probable ones a rank that is one too small."""
    found = law_of_loop(tree_scene(trees.recursive_rejection, siblings, (1, 1), 0))
    assert apart(law_by_replay(0, siblings, (2, 1)), found) > 1e-2
    if siblings == "top":
        assert apart(law_by_replay(0, siblings, (1, 1), later=1), found) > 1e-2


def random_row(size: int, seed: int) -> HostRow:
    weights = np.random.default_rng(seed).dirichlet(np.full(size, 0.3))
    return HostRow(None, weights)


def stands_in_all(p: HostRow, q: HostRow, most: int) -> Floats:
    """[most, V] the chance that one of 1 to ``most`` siblings stands as each token: every order of them."""
    found = np.zeros((most, len(q.weights)))

    def test(left: Floats, own: Floats, chance: float, number: int) -> None:
        if number == most or not own.any():
            return
        found[number:] += chance * np.minimum(own, left)
        rest = np.maximum(left - own, 0.0)
        for token in np.flatnonzero(own > left):
            others = np.where(np.arange(len(own)) == token, 0.0, own)
            others = others / others.sum() if others.any() else others
            test(rest / rest.sum(), others, chance * (own[token] - left[token]), number + 1)

    test(np.asarray(q.weights), np.asarray(p.weights), 1.0, 0)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_of_more_siblings_the_chance_is_met_without_bias(seed: int) -> None:
    """Four of eight tokens; each estimate alone is a probability that rises with their number."""
    p, q, count = random_row(8, seed), random_row(8, seed + 100), 300
    stood, random, worst = stands_in_all(p, q, 4), np.random.default_rng(2), 0.0
    for token in range(8):
        drawn = np.array([drawn_siblings(p, q, token, 4, random, replaced=False) for _ in range(count)])
        assert (np.diff(drawn) >= -1e-12).all()
        assert 0 <= drawn.min() <= drawn.max() <= 1 + 1e-12
        error = drawn.std(axis=0) / np.sqrt(count) + 1e-12
        off = np.abs(drawn.mean(axis=0) - stood[:, token] / q.at(token)) / error
        assert (off < 4.5).all(), (token, off)
        assert drawn[:, :2].std(axis=0) == pytest.approx(0.0, abs=1e-12)
        worst = max(worst, float(error.max()))
    assert 1e-6 < worst < 0.01


def test_rows_by_their_support_give_the_same() -> None:
    p, q = (
        HostRow(None, np.array(row)) for row in ((0.5, 0, 0, 0.3, 0.2, 0, 0), (0.1, 0.2, 0, 0.7, 0, 0, 0))
    )
    few = tuple(HostRow(np.flatnonzero(row.weights), row.weights[row.weights > 0]) for row in (p, q))
    for token in range(7):
        for replaced in (True, False):
            found = [
                drawn_siblings(one, other, token, 3, np.random.default_rng(0), replaced=replaced)
                for one, other in ((p, q), few)
            ]
            assert found[0] == pytest.approx(found[1])
        assert top_siblings(p, token, 3).tolist() == top_siblings(few[0], token, 3).tolist()
    assert top_siblings(p, 3, 3).tolist() == [0, 1, 1]
    assert top_siblings(p, 1, 3).tolist() == [0, 0, 0]


def test_of_equal_tokens_the_smaller_id_is_first() -> None:
    p = HostRow(None, np.array([0.25, 0.25, 0.5]))
    assert [top_siblings(p, token, 3).tolist() for token in range(3)] == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]


def test_a_place_is_read_at_its_own_depth() -> None:
    found = by_depth(np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), (2, 1))
    assert found.tolist() == [[0.2, 0.3], [0.4, 0.5], [0.6, 0.0]]

"""Drafts that are trees: their shapes, who proposes them, and what is recorded of the way through one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commandline import call

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import HostRows
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.registry import shape_in
from spsbench.drafters.shape import MOST_NODES, Shape, shape_of
from spsbench.drafters.suffix import SuffixDrafter
from spsbench.drafters.tree import ModelTreeDrafter, merged
from spsbench.drafters.union import UnionTreeDrafter
from spsbench.engines.buffer import TruncatedLoop
from spsbench.law.enumeration import TableModel, TableTree
from spsbench.store.run import read_frames

U = torch.zeros(MOST_NODES)
PLAIN, GREEDY = SamplingParams(), SamplingParams(greedy=True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(
    ("text", "shape", "nodes", "written"),
    [
        ("4,2,1", Shape((4, 2, 1)), 20, "4-2-1"),
        (" 4 - 2 - 1", Shape((4, 2, 1)), 20, "4-2-1"),
        ("1", Shape((1,)), 1, "1"),
        ("dynamic:24", Shape(dynamic=24), 24, "dynamic-24"),
        ("64", Shape((64,)), 64, "64"),
    ],
)
def test_a_shape_is_read_as_it_is_written(text: str, shape: Shape, nodes: int, written: str) -> None:
    assert shape_of(text, "--tree") == shape
    assert shape.nodes == nodes
    assert str(shape) == written
    assert shape_of(written, "--tree") == shape
    assert shape_in(Spec.parse(f"model:tree={written}")) == shape


@pytest.mark.parametrize(
    "text",
    ["", "4,,2", "4,x", "0,2", "-1", "dynamic", "dynamic:0", "dynamic:4,2", "2.5", "65", "9,9", "dynamic:65"],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"shape|nodes"):
        shape_of(text, "--tree")


def test_a_chain_is_no_tree() -> None:
    assert shape_of("chain", "--tree") is None
    assert shape_in(Spec("model")) is None


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The texts of its nodes."""
    found = [()]
    for token, parent in zip(draft.tokens.tolist(), draft.above, strict=True):
        found.append((*found[parent + 1], token))
    return set(found[1:])


branches = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6)


@given(branches, st.integers(1, 12))
def test_continuations_merge_into_one_tree(several: list[list[int]], k: int) -> None:
    draft = merged(several, Shape(dynamic=k), k, U)
    wanted = list(dict.fromkeys(tuple(path[:n]) for path in several for n in range(1, len(path) + 1)))
    assert paths(draft) == set(wanted[:k])
    assert all(ROOT <= parent < node for node, parent in enumerate(draft.above))


@given(branches, st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_a_static_shape_limits_the_siblings_of_each_depth(
    several: list[list[int]], widths: list[int]
) -> None:
    shape = Shape(tuple(widths))
    draft = merged(several, shape, shape.nodes, U)
    found = paths(draft)
    for path in found:
        siblings = {other for other in found if len(other) == len(path) and other[:-1] == path[:-1]}
        assert len(siblings) <= widths[len(path) - 1]
    assert not several or tuple(several[0][: len(widths)]) in found, "the preferred one is whole"


def bigrams(table: Sequence[Sequence[float]]) -> TableTree:
    """A model that looks at the last token alone."""
    return TableTree(TableModel(lambda context: table[context[-1]], len(table)))


@pytest.mark.parametrize("seed", range(5))
def test_a_dynamic_tree_has_the_most_probable_paths(seed: int) -> None:
    size, depth, nodes = 4, 3, 9
    table = np.random.default_rng(seed).dirichlet(np.full(size, 0.7), size).tolist()
    drafter = ModelTreeDrafter(bigrams(table), PLAIN, Shape(dynamic=nodes), "top", depth)
    drafter.begin((0,))
    draft = drafter.draft([0], nodes, U)

    def chance(path: Sequence[int]) -> float:
        rows = (0, *path)
        return float(np.prod([table[rows[i]][rows[i + 1]] for i in range(len(path))]))

    # Each of at most ceil(nodes / depth) expanded nodes has as many children: not all paths are seen.
    every = [path for n in range(1, depth + 1) for path in product(range(size), repeat=n)]
    best = sorted(every, key=chance, reverse=True)[:nodes]
    missed = set(best) - paths(draft)
    assert len(draft.tokens) == nodes
    assert sum(map(chance, paths(draft))) >= 0.9 * sum(map(chance, best))
    assert len(missed) <= 2
    assert draft.drawn_from is None


def test_under_greedy_the_most_probable_siblings_are_several() -> None:
    table = [[0.5, 0.3, 0.2]] * 3
    for shape in (Shape((2, 2)), Shape(dynamic=6)):
        drafter = ModelTreeDrafter(bigrams(table), GREEDY, shape, "top", 2)
        drafter.begin((0,))
        assert {(0,), (1,), (0, 0)} <= paths(drafter.draft([0], shape.nodes, U))


TEXT = [1, 2, 3, 9, 1, 2, 4, 9, 2, 5, 9, 1, 2]


def test_lookup_branches_into_what_followed_each_earlier_occurrence() -> None:
    drafter = LookupDrafter(2, 1, Shape((3, 1)))
    drafter.begin(TEXT)
    # (1, 2) was followed by 4, before that by 3; (2,) alone by 5 too.
    assert drafter.draft(TEXT, 6, U).tokens.tolist() == [4, 9, 3, 9, 5, 9]
    chain = LookupDrafter(2, 1)
    chain.begin(TEXT)
    assert chain.draft(TEXT, 2, U).tokens.tolist() == [4, 9]


def test_suffix_branches_into_what_followed_shorter_matches() -> None:
    drafter = SuffixDrafter(1, False, Shape(dynamic=8), 2)
    drafter.begin([7, 5, 9, *TEXT[:4], 8, 5, 9, 2, 6, 5, 9])
    # (5, 9) came first before 1; no shorter suffix has another first place.
    assert paths(drafter.draft([7, 5, 9, *TEXT[:4], 8, 5, 9, 2, 6, 5, 9], 8, U)) >= {(1,), (1, 2)}


class Fixed:
    """Proposes one text, and remembers what it heard."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.heard = tokens, list[int]()

    def begin(self, prompt: Sequence[int]) -> None: ...

    def draft(self, tokens: Sequence[int], k: int, u: torch.Tensor) -> Draft:
        assert len(u) == k
        return Draft(torch.tensor(self.tokens[:k]), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        self.heard.append(accepted)


def test_a_union_of_branches_tells_each_member_what_of_its_own_stood() -> None:
    first, second = Fixed([1, 2, 3]), Fixed([1, 4, 5])
    union = UnionTreeDrafter([first, second], Shape((1, 2, 1)), 3)
    union.begin([0])
    draft = union.draft([0], 5, U[:6])
    assert draft.tokens.tolist() == [1, 2, 3, 4, 5]
    assert draft.parents == [ROOT, 0, 1, 0, 3]
    union.observe([0, 1, 4, 7], 2)
    assert (first.heard, second.heard) == ([1], [2])


def loop_of_a_tree(path: tuple[int, ...], kept: int, reason: str | None = None) -> TruncatedLoop:
    """Nodes 0 and 1 below the pending token, 2 and 3 below 1, 4 below 3; each row's largest is its number."""
    tokens, parents = [10, 11, 12, 13, 14], [ROOT, ROOT, 1, 1, 3]
    rows = torch.full((6, 20), 0.01)
    rows[range(6), range(6)] = 0.81
    draft = Draft(torch.tensor(tokens), None, parents)
    new = [*(tokens[node] for node in path), 19]
    decoded = DecodedLoop(new, len(path), HostRows.of(rows), draft, torch.arange(11) / 11, path)
    return TruncatedLoop(decoded, kept, reason, {}).along_its_path()  # type: ignore[arg-type]


def test_a_loop_of_a_tree_is_recorded_along_its_path() -> None:
    loop = loop_of_a_tree((1, 3), 3)
    assert (loop.drafted, loop.accepted, loop.tested) == (3, 2, 3)
    assert loop.branches is not None
    assert loop.branches[:3] == (5, 3, (1, 1))
    # Of the rows stay those behind the pending token, behind 1 and behind 3; the first siblings are told.
    assert loop.decoded.target_rows.dense().argmax(-1).tolist() == [0, 2, 4]
    assert loop.decoded.draft is not None
    assert loop.decoded.draft.tokens.tolist() == [10, 12, 14]
    # Numbers 5 to 9 tested the nodes 0 to 4, the last drew.
    assert (loop.decoded.u * 11).round().int().tolist() == [6, 8, 9, 10]


def test_a_leaf_ends_a_path_without_a_further_test() -> None:
    whole = loop_of_a_tree((1, 3, 4), 4)
    assert (whole.drafted, whole.accepted, whole.tested) == (3, 3, 3)
    ended = loop_of_a_tree((1, 3, 4), 2, "eos")
    assert (ended.drafted, ended.accepted, ended.tested) == (2, 2, 2)
    none = loop_of_a_tree((), 1)
    assert (none.drafted, none.accepted, none.tested) == (3, 0, 1)


def test_the_optimum_of_a_certain_tree_is_the_targets_mass_on_its_paths() -> None:
    loop = loop_of_a_tree((), 1)
    assert loop.branches is not None
    assert loop.branches.optimum == pytest.approx(0.01 + 0.01 + 2 * 0.01**2 + 0.01**3)


def test_a_run_records_its_trees(tmp_path: Path) -> None:
    """A model and a copying drafter, beside chains; the journal is read again."""
    command = (
        "run xsum --limit 2 --backend torch --max-new-tokens 12 --k 3 --no-proof --quiet "
        "--tree chain+3,1+dynamic:8 --drafter model,lookup --rule modified-rejection,one-hot --out"
    )
    done = call(*command.split(), tmp_path / "run")
    assert done.code == 0, done.err
    frames = read_frames(tmp_path / "run")
    loops = frames.loops
    trees = loops[loops["arm"].str.contains("tree=")]
    assert set(frames.arms["drafter"].dropna()) == {
        *(
            "model",
            "lookup",
            "model:tree=3-1",
            "model:tree=dynamic-8",
            "lookup:tree=3-1",
            "lookup:tree=dynamic-8",
        )
    }
    assert loops[~loops["arm"].str.contains("tree=")]["nodes"].isna().all()
    static = trees[trees["arm"].str.contains("model:tree=3-1")]
    assert (static["nodes"] <= 6).all()
    assert (static["drafted"] <= 2).all()
    stood = trees["siblings"].map(lambda text: len(text.split(",")) if text else 0)
    assert (stood == trees["accepted"]).all()
    assert trees["accepted"].sum() > 0
    assert (trees["beta_sum"].isna() | (trees["tested"] == 0)).all()

"""What replay says of a text's loops is what the production loop does, outcome by outcome."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from spsbench.base.arrays import Floats
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.rejection import accept_draft
from spsbench.decode.sampling import warp
from spsbench.drafters.forced import ForcedText, forced_drafts
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_rule
from spsbench.law.enumeration import Proposal, Scene, TableModel, law_of_loop, paths, proposals, random_rows
from spsbench.law.text_loops import accepted_by_token, anchored, loops_over, ratio_by_token, stopped
from spsbench.law.theory import expected_tokens
from spsbench.testing import scenes

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(greedy=True),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(top_p=0.8),
)


def row(model: TableModel, context: Sequence[int], sampling: SamplingParams) -> Floats:
    model.rollback(0)
    found: Floats = warp(model.score(torch.tensor(list(context)), last=1), sampling)[0].double().numpy()
    return found


def of_text(scene: Scene, text: Sequence[int]) -> tuple[float, Floats]:
    """(the target's probability of the text, [n, K] ratios p / q that the drafter says)."""
    q = [row(scene.target, [*scene.prompt, *text[:t]], scene.sampling)[token] for t, token in enumerate(text)]
    if not all(q):
        return 0.0, np.zeros((len(text), scene.k))
    given = ForcedText(scene.prompt, text, np.log(q))
    return math.prod(q), forced_drafts(scene.make(), given, scene.k, "").ratios


@cache
def situations(
    drafter: str, vocab_size: int, k: int, sampling: SamplingParams
) -> list[tuple[Scene, list[Proposal], dict[tuple[int, ...], tuple[float, Floats]]]]:
    """Scenes of first loops with what no rule changes: their drafts, and every text that a loop can emit."""
    found = scenes(drafter, accept_draft, vocab_size, [k], [sampling])
    texts = [text for length in range(1, k + 2) for text in product(range(vocab_size), repeat=length)]
    return [
        (scene, list(proposals(scene)), {text: of_text(scene, text) for text in texts})
        for scene in found
        if not scene.before
    ]


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("drafter", ["model", "lookup", "suffix", "bigram", "union", "union:of=suffix+ngram"])
@pytest.mark.parametrize(("vocab_size", "k"), [(2, 4), (3, 3), (4, 2)])
@pytest.mark.parametrize("rule", ["modified-rejection", "block"])
def test_text_and_pattern_together_are_the_loops_own(
    drafter: str, rule: str, vocab_size: int, k: int, sampling: SamplingParams
) -> None:
    """The chance of what a loop emits is that of the text, times that of the loop given the text."""
    for scene, proposed, texts in situations(drafter, vocab_size, k, sampling):
        law: dict[tuple[int, ...], float] = defaultdict(float)
        for path in paths(replace(scene, accept=build_rule(Spec(rule)).accept), proposed):
            law[path.tokens] += path.chance
        for tokens, (chance, ratios) in texts.items():
            ends = loops_over(ratios, block=rule == "block").ends[0, 0, len(tokens) - 1] if chance else 0.0
            assert law[tokens] == pytest.approx(chance * ends, abs=1e-6 if "gram" in drafter else 1e-12), (
                tokens,
                scene,
            )


def loops_by_enumeration(scene: Scene, length: int) -> float:
    """Expected loops of the production loop for texts of a length, from the law of each loop."""
    if length <= 0:
        return 0.0
    return 1.0 + sum(
        chance * loops_by_enumeration(replace(scene, prompt=(*scene.prompt, *tokens)), length - len(tokens))
        for tokens, chance in law_of_loop(scene).items()
        if len(tokens) < length
    )


@pytest.mark.parametrize(("vocab_size", "k", "length"), [(2, 3, 5), (3, 2, 3)])
def test_block_verification_takes_as_many_loops_as_its_law_says(vocab_size: int, k: int, length: int) -> None:
    """Averaged over the target's texts; the law of modified rejection is the control."""
    target, draft = (TableModel(random_rows(vocab_size, seed, 1.5), vocab_size) for seed in (1, 2))
    scene = Scene(
        target,
        lambda: ModelDrafter(draft, SamplingParams(), torch.device("cpu")),
        build_rule(Spec("block")).accept,
        (0,),
        k,
        SamplingParams(),
    )
    expected, other = 0.0, 0.0
    for text in product(range(vocab_size), repeat=length):
        chance, ratios = of_text(scene, text)
        expected += chance * loops_over(ratios, block=True).loops
        other += chance * loops_over(ratios).loops
    found = loops_by_enumeration(scene, length)
    assert found == pytest.approx(expected, abs=1e-12)
    assert other > found + 1e-3


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(0, 1e300)))
def test_block_verification_never_takes_more_loops(ratios: Floats) -> None:
    """Also where a product of ratios would overflow."""
    block, modified = (loops_over(ratios, block=block) for block in (True, False))
    assert block.loops <= modified.loops * (1 + 1e-9)  # logs of such products are rounded
    assert bool(np.allclose(block.ends.sum(-1), 1.0))
    assert bool((block.ends >= -1e-15).all())


def test_block_verification_by_hand() -> None:
    """A ratio above 1 makes up for a later one, not an earlier one; after a ratio of 0 nothing is kept."""
    ratios = np.array([[0.5, 1.5, 0.5, 4.0, 0.0], [3.0, 0.5, 0.0, 9.0, 9.0]])
    found = loops_over(ratios, block=True).ends[0]
    assert found[0] == pytest.approx([0.5, 0, 0.125, 0, 0.375, 0])
    assert found[1] == pytest.approx([0, 0, 1, 0, 0, 0])


def test_a_wrong_row_is_noticed() -> None:
    """The control: one row late, as an off-by-one in teacher forcing would be."""
    by_token = np.array([0.9, 0.2, 0.7, 0.5])
    right, late = (loops_over(anchored(r, 2)).loops for r in (by_token, np.roll(by_token, 1)))
    assert right != pytest.approx(late, abs=1e-3)


def by_hand(chances: Floats, t: int = 0) -> dict[tuple[int, ...], float]:
    """Every way through the text, as the kept tokens of its loops, one branch at a time."""
    n, k = chances.shape
    if t >= n:
        return {(): 1.0}
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for accepted in range(k + 1):
        chance = math.prod(chances[t, :accepted]) * (1 - chances[t, accepted] if accepted < k else 1.0)
        kept = min(accepted + 1, n - t)
        for rest, behind in by_hand(chances, t + accepted + 1).items():
            found[(kept, *rest)] += chance * behind
    return found


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_loops_of_a_text_are_those_of_all_ways_through_it(k: int) -> None:
    chances = np.random.default_rng(k).uniform(size=(6, k))
    found, ways = loops_over(chances), by_hand(chances)
    assert sum(ways.values()) == pytest.approx(1.0)
    assert found.loops == pytest.approx(sum(len(way) * chance for way, chance in ways.items()))
    counts, emitted = np.zeros(7), np.zeros(k + 1)
    for way, chance in ways.items():
        counts[len(way)] += chance
        for kept in way:
            emitted[kept - 1] += chance
    assert found.counts == pytest.approx(counts)
    assert found.emitted() == pytest.approx(emitted)
    assert found.emitted() @ np.arange(1, k + 2) == pytest.approx(6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_one_alpha_everywhere_is_leviathans_formula_on_a_long_text(alpha: float) -> None:
    n, k = 20_000, 4
    found = loops_over(np.full((n, k), alpha))
    assert n / found.loops == pytest.approx(expected_tokens(alpha, k), rel=1e-3)


def test_a_draft_that_stops_accepts_nothing_further() -> None:
    chances = np.ones((6, 3))
    found = loops_over(stopped(chances, np.array([1, 3, 0, 3, 3, 3])))
    assert found.ends[0, 0].tolist() == [0, 1, 0, 0]
    assert found.starts[0].tolist() == [1, 0, 1, 1, 0, 0]


def test_a_token_that_rounding_put_outside_of_the_nucleus_counts_as_likely() -> None:
    log_target = np.array([-1.0, -np.inf, -np.inf, -2.0])
    log_draft = np.array([-2.0, -1.0, -np.inf, -np.inf])
    assert accepted_by_token(log_target, log_draft) == pytest.approx([math.exp(-1), 1, 0, 0])


def test_the_ratio_of_an_almost_impossible_token_is_finite() -> None:
    log_target, log_draft = np.array([-1000.0, -2.0, -np.inf, -1.0]), np.array([-1.0, -1.0, -1.0, -np.inf])
    found = ratio_by_token(log_target, log_draft)
    assert np.isfinite(found).all()
    assert found[1:] == pytest.approx([math.e, 1, 0])

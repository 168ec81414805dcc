"""Noise that draft, test and replacement share: exact laws, and the production loop with it planted."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from benchmarks import shared_noise
from benchmarks.shared_noise import ALL, REPLACED_BY_TEST, REPLACES, TESTS, Floats, raced_twice, variation
from spsbench.base.records import SamplingParams
from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import ScriptedUniforms
from spsbench.drafters.model import ModelDrafter
from spsbench.law.enumeration import EXACT, TableModel
from spsbench.parts.verify.controls import planted

PLAIN = SamplingParams()
CONTROLS = {
    "draft-noise-replaces": REPLACES,
    "draft-noise-tests": TESTS,
    "test-noise-replaces": REPLACED_BY_TEST,
    "one-noise": ALL,
    None: "",
}


def looped(control: str | None, q: Floats, p: Floats) -> Floats:
    """[V] the law of the first token of the production loop at K = 1, by boxes in all of its three numbers.

    A number is compared with the limits of tests and with cumulative sums of the draft's row and of the
    replacement's: between those the loop is one thing, which two corners of each box confirm.
    """
    target, draft = (TableModel(lambda _, row=row: row.tolist(), len(row)) for row in (q, p))
    sums = [np.cumsum(row) for row in (p, shared_noise.residual(q, p))]
    edges = np.unique(np.concatenate([[0.0, 1.0], *sums, np.minimum(1.0, q / p)]).clip(0.0, 1.0))
    pieces = [(low, high) for low, high in pairwise(edges.tolist()) if high - low > 1e-15]

    def emitted(point: tuple[float, ...]) -> int:
        script = ScriptedUniforms([torch.tensor(point, dtype=torch.float64)])
        drafter = ModelDrafter(draft, PLAIN, torch.device("cpu"))
        loops = start(target, drafter, (0,), 1, PLAIN, script)
        return next(loops(Stopwatch(FakeClock()))).tokens[0]

    law = np.zeros(len(q))
    with torch.inference_mode(), planted(control, target):
        for box in product(pieces, repeat=3):
            token = emitted(tuple(0.9 * low + 0.1 * high for low, high in box))
            assert token == emitted(tuple(0.1 * low + 0.9 * high for low, high in box))
            law[token] += np.prod([high - low for low, high in box])
    return law


@pytest.mark.thorough_but("[0-3")
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize(("seed", "vocab_size"), [(0, 3), (1, 3), (2, 3), (0, 8)])
def test_the_planted_loop_has_the_law_that_is_computed(
    seed: int, vocab_size: int, control: str | None
) -> None:
    q, p = shared_noise.rows_of(seed, vocab_size, "far")
    law = looped(control, q, p)
    assert np.abs(law - shared_noise.by_inverse(q, p, CONTROLS[control])).max() < EXACT
    if control is None:
        assert variation(law, q) < EXACT
    elif vocab_size > 3:
        assert variation(law, q) > 1e-3


@pytest.mark.parametrize("name", shared_noise.LAWS)
def test_noise_of_its_own_is_exact_and_shared_noise_is_not(name: str) -> None:
    """On 20 tables; the rejected token's number does no harm in a race, which that token cannot win again."""
    law = shared_noise.LAWS[name]
    exact = {"", REPLACED_BY_TEST} if name == "race" else {""}
    for family, size in product(("near", "far"), (3, 8)):
        rows = [shared_noise.rows_of(seed, size, family) for seed in range(20)]
        for shared in shared_noise.SHARED.values():
            laws = [law(q, p, shared) for q, p in rows]
            assert max(abs(each.sum() - 1) for each in laws) < EXACT
            apart = [variation(each, q) for each, (q, _) in zip(laws, rows, strict=True)]
            assert (max(apart) < EXACT) == (shared in exact), (family, size, shared)


def test_a_narrow_table_nearly_hides_a_replacement_by_the_drafts_noise() -> None:
    def mean(size: int) -> float:
        rows = [shared_noise.rows_of(seed, size, "near") for seed in range(20)]
        return float(np.mean([variation(shared_noise.by_race(q, p, REPLACES), q) for q, p in rows]))

    assert mean(3) < 0.003 < 3 * mean(3) < mean(16)


@pytest.mark.parametrize("vocab_size", [3, 8])
def test_two_draws_of_one_race_have_their_own_laws(vocab_size: int) -> None:
    """Whatever they share: summed over the one, the joint law is the other's."""
    for seed in range(5):
        p, r = shared_noise.rows_of(seed, vocab_size, "far")
        r = shared_noise.residual(r, p)
        joint = np.array([raced_twice(p, r, x, np.inf) for x in range(vocab_size)])
        assert np.abs(joint.sum(1) - p).max() < EXACT
        assert np.abs(joint.sum(0) - r).max() < EXACT
        same = np.array([raced_twice(p, p, x, np.inf) for x in range(vocab_size)])
        assert np.abs(same - np.diag(p)).max() < EXACT


@pytest.mark.parametrize("limit", [0.3, np.inf])
def test_the_closed_form_is_what_is_drawn(limit: float) -> None:
    """400,000 races: each cell within five standard errors."""
    count, (q, p) = 400_000, shared_noise.rows_of(3, 5, "far")
    r = shared_noise.residual(q, p)
    times = np.random.default_rng(7).standard_exponential((count, 5))
    with np.errstate(divide="ignore"):
        drafted, replaced = (times / p).argmin(1), (times / r).argmin(1)
    for x in range(5):
        inside = (drafted == x) & (times[:, x] < limit)
        for y, chance in enumerate(raced_twice(p, r, x, limit)):
            seen = np.count_nonzero(inside & (replaced == y)) / count
            assert abs(seen - chance) < 5 * np.sqrt((chance + 1 / count) / count)

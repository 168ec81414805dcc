"""The accepted tokens that the best lossless rule expects, as each loop records them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from spsbench.base.records import Loop, SamplingParams
from spsbench.decode import rejection, trees
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.rejection import ROOT, Accept, Draft
from spsbench.decode.rows import TensorRows
from spsbench.decode.stopping import StopRule
from spsbench.drafters.model import ModelDrafter
from spsbench.engines.buffer import TruncatedLoop, loop_records, proposed_tokens
from spsbench.law.enumeration import Scene, TableModel, _run, paths, random_rows
from spsbench.law.optimum import most_of_chain


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_a_chain_by_hand() -> None:
    """w = 1/2, 1, 1/2: the second token makes up for the first, and no more than that."""
    assert most_of_chain([0.5, 3.0, 0.5]) == 2.0
    assert most_of_chain([0.0, 5.0]) == 0.0
    assert most_of_chain([]) == 0.0
    assert math.isnan(most_of_chain([0.5, math.nan, 2.0]))


Q = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
P = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)


def record(draft: Draft | None, end_ids: tuple[int, ...] = ()) -> Loop:
    decoded = DecodedLoop([1], 0, TensorRows(Q), draft, torch.zeros(5, dtype=torch.float64))
    loops = [TruncatedLoop(decoded, 1, None, {}).along_its_path()]
    (loop,) = loop_records(loops, proposed_tokens(loops), phases=False, end_ids=end_ids)
    return loop


def test_a_loop_by_hand() -> None:
    """Tokens 0 and 1: q/p = 1/2 and 3/2, so w = 1/2 and 3/4; as point masses 1/2 and 3/8."""
    tokens = torch.tensor([0, 1])
    assert record(Draft(tokens, P)).optimal_accepted == 1.25
    assert record(Draft(tokens, None)).optimal_accepted == 0.875
    assert record(Draft(tokens, P), end_ids=(0,)).optimal_accepted == 0.5
    assert record(Draft(tokens, P), end_ids=(1,)).optimal_accepted == 1.25
    assert record(Draft(tokens[:0], None)).optimal_accepted == 0.0
    assert record(None).optimal_accepted == 0.0
    assert record(Draft(tokens, P, [ROOT, ROOT])).optimal_accepted is None


EOS = 2


def means(accept: Accept, sampling: SamplingParams, seed: int, *, fixed_length: bool) -> tuple[float, float]:
    """(accepted, the best rule's) tokens per loop on average over all that a loop can do."""
    target, draft = (TableModel(random_rows(3, 2 * seed + one, sharpness=1.5), 3) for one in (0, 1))
    scene = Scene(
        target, lambda: ModelDrafter(draft, sampling, torch.device("cpu")), accept, (0,), 2, sampling
    )
    stop = StopRule(str, (), frozenset({EOS}), 100, fixed_length)
    accepted = optimum = total = 0.0
    for path in paths(scene):
        decoded = _run(scene, path.numbers)[1]
        loop = TruncatedLoop(decoded, *stop.cut([], decoded.tokens), {})
        (found,) = loop_records([loop], proposed_tokens([loop]), phases=False, end_ids=stop.end_ids)
        assert found.optimal_accepted is not None
        total += path.chance
        accepted += path.chance * found.accepted
        optimum += path.chance * found.optimal_accepted
    assert total == pytest.approx(1.0)
    return accepted, optimum


@pytest.mark.parametrize("fixed_length", [True, False])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(top_p=0.7), SamplingParams(greedy=True)]
)
@pytest.mark.parametrize("seed", range(3))
def test_block_accepts_it_on_average_and_modified_rejection_no_more(
    seed: int, sampling: SamplingParams, fixed_length: bool
) -> None:
    accepted, optimum = means(trees.traversal, sampling, seed, fixed_length=fixed_length)
    assert accepted == pytest.approx(optimum, abs=1e-12)
    fewer, same = means(rejection.accept_draft, sampling, seed, fixed_length=fixed_length)
    assert same == pytest.approx(optimum, abs=1e-12)
    assert fewer <= optimum + 1e-12
    if sampling == SamplingParams():
        assert fewer < optimum - 1e-4

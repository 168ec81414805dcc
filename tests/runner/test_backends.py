"""Which engine answers: graphed where stages can be captured, eager with a reason where not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spsbench.config import resolve
from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.decode.clock import FakeClock
from spsbench.engines.cuda_graph import CaptureFailed, uncaptured
from spsbench.models.pair import Pair, find_pair, load_pair
from spsbench.records import Arm, Request, SamplingParams
from spsbench.runner.backends import NO_GRAPHS, Backends

GREEDY = SamplingParams(greedy=True)
ARMS = (
    Arm("ars", 0, "graphed", "greedy", GREEDY),
    Arm("sps", 4, "graphed", "greedy", GREEDY),
    Arm("draft", 0, "graphed", "greedy", GREEDY),
)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(find_pair(resolve({}).pair), ("float32", "float32"), torch.device("cpu"), TORCH)


def test_graphed_arms_share_their_static_models(pair: Pair) -> None:
    captured: list[Callable[[], object]] = []

    def capture(stage: Callable[[], object]) -> Callable[[], object]:
        captured.append(stage)
        return uncaptured(stage)

    backends = Backends(pair, 64, FakeClock(), capture)
    engines = backends.all(ARMS)
    assert {engine.name for engine in engines.values()} == {"graphed"}
    assert len(captured) == 1 + 3 + 1
    assert not backends.fallbacks
    asked = Request(tuple(range(10, 30)), 24, (), GREEDY, seed=1, fixed_length=True)
    texts = [engines[arm].generate(asked).tokens for arm in ARMS]
    assert texts[0] == texts[1] != texts[2]


def test_a_stage_that_cannot_be_captured_leaves_the_arm_eager(pair: Pair) -> None:
    def refuse(stage: Callable[[], object]) -> Callable[[], object]:
        raise CaptureFailed("a CUDA graph could not be captured: operation not permitted")

    backends = Backends(pair, 64, FakeClock(), refuse)
    assert backends.build(ARMS[1]).name == "eager"
    assert "not permitted" in backends.fallbacks[ARMS[1].name]


def test_without_cuda_there_are_no_graphs(pair: Pair) -> None:
    backends = Backends(pair, 64)
    assert {engine.name for engine in backends.all(ARMS).values()} == {"eager"}
    assert set(backends.fallbacks.values()) == {NO_GRAPHS}


def test_a_peer_computes_on_the_runs_threads() -> None:
    """Over ONNX Runtime torch has one thread; a peer on one, where we have more, would flatter us."""
    source = find_pair(resolve({}).pair)
    pair = load_pair(source, ("float32", "float32"), torch.device("cpu"), ONNXRUNTIME, threads=1)
    assert torch.get_num_threads() == 1
    pair.info["threads"] = 2  # as if the pool had two
    try:
        Backends(pair, 64).build(Arm("ars", 0, "hf-generate", "greedy", GREEDY))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)

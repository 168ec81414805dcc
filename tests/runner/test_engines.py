"""Which engine answers: graphed where stages can be captured, eager with a reason where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from spsbench.base.errors import UsageError
from spsbench.base.records import Arm, BeamParams, Request, SamplingParams
from spsbench.config import resolve
from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.decode.clock import FakeClock
from spsbench.engines.cuda_graph import CaptureFailed, GraphedEngine, uncaptured
from spsbench.models import memory as weights
from spsbench.models.pair import Pair, find_pair, load_pair
from spsbench.runner.engines import EngineFactory, stock_roles
from spsbench.runner.messages import CUDA_GRAPHS_NEED_CUDA
from spsbench.runner.planning import plan

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

    backends = EngineFactory(pair, 64, FakeClock(), capture)
    engines = backends.all(ARMS)
    assert {engine.name for engine in engines.values()} == {"graphed"}
    assert len(captured) == 1 + 3 + 1
    rows = [engine.batch._open_rows for engine in engines.values() if isinstance(engine, GraphedEngine)]
    assert len(rows) == 3
    assert len({own.untyped_storage().data_ptr() for own in rows}) == 1, "one memory, whichever comes first"
    assert not backends.fallbacks
    asked = Request(tuple(range(10, 30)), 24, (), GREEDY, seed=1, fixed_length=True)
    texts = [engines[arm].generate(asked).tokens for arm in ARMS]
    assert texts[0] == texts[1] != texts[2]


def test_a_stage_that_cannot_be_captured_leaves_the_arm_eager(pair: Pair) -> None:
    def refuse(stage: Callable[[], object]) -> Callable[[], object]:
        raise CaptureFailed("a CUDA graph could not be captured: operation not permitted")

    backends = EngineFactory(pair, 64, FakeClock(), refuse)
    assert backends.build(ARMS[1]).name == "eager"
    assert "not permitted" in backends.fallbacks[ARMS[1].name]


def test_without_cuda_there_are_no_graphs(pair: Pair) -> None:
    backends = EngineFactory(pair, 64)
    assert {engine.name for engine in backends.all(ARMS).values()} == {"eager"}
    assert set(backends.fallbacks.values()) == {CUDA_GRAPHS_NEED_CUDA}


@pytest.fixture
def over_onnx() -> Iterator[Pair]:
    """A pair over ONNX Runtime, which leaves torch one thread, in a run that has two."""
    source, usual = find_pair(resolve({}).pair), torch.get_num_threads()
    pair = load_pair(source, ("float32", "float32"), torch.device("cpu"), ONNXRUNTIME, threads=1)
    assert torch.get_num_threads() == 1
    pair.info["threads"] = 2  # as if the pool had two
    yield pair
    torch.set_num_threads(usual)


BEAM = SamplingParams(beam=BeamParams(2, 2))


@pytest.mark.parametrize(
    "arm",
    [
        Arm("ars", 0, "hf-generate", "greedy", GREEDY),
        Arm("ars", 0, "eager", "beam(2)", BEAM),
        Arm("sps", 2, "eager", "beam(2)", BEAM),
    ],
)
def test_torch_has_the_runs_threads_in_the_sequences_of_its_own_arms_alone(over_onnx: Pair, arm: Arm) -> None:
    """On one thread a peer would flatter us; two during the other arms would slow those."""
    engine = EngineFactory(over_onnx, 64).build(arm)
    assert torch.get_num_threads() == 1
    seen: set[int] = set()
    hook = register_module_forward_pre_hook(lambda module, inputs: seen.add(torch.get_num_threads()))
    try:
        engine.generate(Request((5, 6, 7), 2, (), arm.sampling, seed=0, fixed_length=True))
    finally:
        hook.remove()
    assert seen == {2}
    assert torch.get_num_threads() == 1


def test_stock_models_are_those_of_beams_and_of_transformers_engines() -> None:
    searches = (
        Arm("ars", 0, "eager", "beam(2)", BEAM),
        Arm("sps", 3, "eager", "beam(2)", BEAM),
        Arm("draft", 0, "eager", "beam(2)", BEAM),
    )
    assert [stock_roles([arm]) for arm in searches] == [{"target"}, {"target", "draft"}, {"draft"}]
    generate = Arm("ars", 0, "hf-generate", "greedy", GREEDY)
    assert stock_roles([generate, Arm("sps", 3, "hf-prompt-lookup", "greedy", GREEDY)]) == {"target"}
    assert stock_roles([Arm("sps", 3, "hf-assisted", "greedy", GREEDY)]) == {"target", "draft"}
    assert stock_roles([Arm("sps", 3, "eager", "greedy", GREEDY), *ARMS]) == set()


def test_a_run_counts_the_weights_of_its_stock_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the pair, and while ONNX Runtime packs it; not for both models once more."""
    asked: dict[str, object] = {"task": "xsum", "limit": 1, "data": "mini", "device": "cpu"}
    source = find_pair(resolve({}).pair)
    sizes = [weights.weight_bytes(model, "float32", "") or 0 for model in (source.target, source.draft)]
    monkeypatch.setattr(weights, "available_bytes", lambda device: 2 * sum(sizes) - 1)
    plan(resolve(asked | {"sampling": "greedy"}))
    plan(resolve(asked | {"sampling": "beam", "arms": "ars"}))
    plan(resolve(asked | {"sampling": "beam", "backend": "torch"}))
    with pytest.raises(UsageError, match="over ONNX Runtime and torch together"):
        plan(resolve(asked | {"sampling": "beam"}))
    target = dict.fromkeys(("target", "draft"), str(source.target.location))
    plan(resolve(asked | target | {"sampling": "beam"}))

"""A loop on a device: how often the host waits, what it launches, and the tokens of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.device import CUDA, Device, emulated
from support.fixed_shapes import GREEDY, NEW, PROMPTS, SAMPLED, SLOTS, TOP_K, Bytes, eager, request
from support.tiny_models import make_pair

from spsbench.base.records import SamplingParams
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.batch import BatchArS, BatchSpS, DecodingBatch, ModelBatchDrafter
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import UniformStream
from spsbench.engines.cuda_graph import GraphedEngine, Graphs, StagedBatch
from spsbench.engines.local import EagerEngine
from spsbench.models.batched import StaticLM
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance

LOOPS = 6


@pytest.fixture(name="device")
def emulated_device() -> Iterator[Device]:
    with emulated() as device, torch.inference_mode():
        yield device


def pair() -> tuple[TorchLM, TorchLM]:
    with torch.inference_mode(False):
        target, draft = make_pair("llama", 0.5)
        return TorchLM(target.to(CUDA)), TorchLM(draft.to(CUDA))


def counted(device: Device, loops: Iterator[Any]) -> list[Any]:
    """So many loops; each under a step of its own."""
    found = []
    for number in range(LOOPS):
        with device.step(f"loop {number}"):
            found.append(next(loops))
    return found


def waits(device: Device) -> list[int]:
    return [device.counts.waited(f"loop {number}") for number in range(LOOPS)]


def up_bytes(device: Device) -> int:
    return sum(device.counts.up_bytes[f"loop {number}"] for number in range(LOOPS))


def on_cpu(k: int, sampling: SamplingParams, seed: int = 0, length: int = 9) -> list[int]:
    target, draft = make_pair("llama", 0.5)
    asked = request(length, sampling, seed, fixed_length=True)
    return eager((TorchLM(target), TorchLM(draft)), k).generate(asked).tokens


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, TOP_K], ids=["greedy", "nucleus", "top-k"])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_the_eager_engine_waits_once_a_loop(k: int, sampling: SamplingParams) -> None:
    expected = on_cpu(k, sampling)
    with emulated() as device, torch.inference_mode():
        target, draft = pair()
        engine = EagerEngine(target, draft if k else None, k, Bytes(), CUDA, FakeClock())
        loops = engine.start(request(9, sampling))(Stopwatch(FakeClock()))
        tokens = [token for loop in counted(device, loops) for token in loop.tokens]
        assert waits(device) == [1] * LOOPS
        assert not up_bytes(device)
        assert tokens[:NEW] == expected[: len(tokens)]


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, TOP_K], ids=["greedy", "nucleus", "top-k"])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_graphed_loop_is_few_launches_and_one_wait(k: int, sampling: SamplingParams) -> None:
    """Three graphs or one, and nothing beside them."""
    expected = on_cpu(k, sampling)
    with emulated() as device, torch.inference_mode():
        fixed = [StaticLM(model, SLOTS, least_span=16) for model in pair()]
        batch = StagedBatch(fixed[0], fixed[1] if k else None, k, sampling, Graphs(CUDA))
        engine = GraphedEngine(batch, Bytes(), FakeClock())
        loops = engine.start(request(9, sampling))(Stopwatch(FakeClock()))
        tokens = [token for loop in counted(device, loops) for token in loop.tokens]
        assert waits(device) == [1] * LOOPS
        assert not up_bytes(device)
        launched = [device.counts.launched(f"loop {number}") for number in range(LOOPS)]
        assert launched == [3 if k else 1] * LOOPS
        assert tokens[:NEW] == expected[: len(tokens)]


@pytest.mark.parametrize("k", [0, 4])
def test_an_eager_batch_waits_once_a_loop(k: int) -> None:
    lengths = (9, 2, 9)
    expected = [on_cpu(k, SAMPLED, seed, length) for seed, length in enumerate(lengths)]
    with emulated() as device, torch.inference_mode():
        target, draft = (StaticLM(model, SLOTS, 3) for model in pair())
        batch: DecodingBatch = BatchArS(target, SAMPLED)
        if k:
            batch = BatchSpS(target, SAMPLED, ModelBatchDrafter(draft, SAMPLED), k)
        for row, length in enumerate(lengths):
            batch.begin(row, PROMPTS[length], UniformStream(row, CUDA))
        watch = Stopwatch(FakeClock())
        found: list[dict[int, DecodedLoop]] = counted(device, (batch.loop(watch) for _ in range(LOOPS)))
        assert waits(device) == [1] * LOOPS
        for row, tokens in enumerate(expected):
            own = [token for loop in found for token in loop[row].tokens]
            assert own[:NEW] == tokens[: len(own)]


def test_forced_acceptance_waits_no_more(device: Device) -> None:
    target, draft = pair()
    rule = SyntheticAcceptance([0.8]).rule()
    engine = EagerEngine(target, draft, 4, Bytes(), CUDA, FakeClock(), rule)
    counted(device, engine.start(request(9, SAMPLED))(Stopwatch(FakeClock())))
    assert waits(device) == [2] + [1] * (LOOPS - 1)  # the probabilities are copied up once

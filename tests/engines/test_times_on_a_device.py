"""Times of our engines on an emulated device with a virtual clock: phases, batches, what is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from support.device import CUDA, Device, emulated
from support.fixed_shapes import SAMPLED, SLOTS, Bytes, request
from support.tiny_models import make_pair

from spsbench.base.records import Generation
from spsbench.decode.batch import BatchArS, DecodingBatch
from spsbench.decode.clock import Stopwatch, SystemClock
from spsbench.engines import local
from spsbench.engines.cuda_graph import GraphedEngine, Graphs, StagedBatch
from spsbench.engines.local import BatchedEngine, EagerEngine
from spsbench.models.batched import StaticLM, batch_model
from spsbench.models.torch_lm import TorchLM

K = 2
ENGINES = ("eager", "graphed")


def on_device(engine: str, k: int = K, size: int = 1) -> EagerEngine | GraphedEngine | BatchedEngine:
    target, draft = (TorchLM(model.to(CUDA)) for model in make_pair("llama", 0.5))
    clock = SystemClock()
    if engine == "graphed":
        static = [StaticLM(model, SLOTS, size) for model in (target, draft)]
        staged = StagedBatch(static[0], static[1] if k else None, k, SAMPLED, Graphs(CUDA))
        if size == 1:
            return GraphedEngine(staged, Bytes(), clock)
        return BatchedEngine(staged, Bytes(), CUDA, clock)
    if size == 1:
        return EagerEngine(target, draft, k, Bytes(), CUDA, clock)
    assert not k
    return BatchedEngine(
        BatchArS(batch_model(target, size, SLOTS, blocks=False), SAMPLED), Bytes(), CUDA, clock
    )


def generated(engine: Any, lengths: list[int]) -> list[Generation]:
    requests = [request(9, SAMPLED, max_new_tokens=n, fixed_length=True, trace=False) for n in lengths]
    if not isinstance(engine, BatchedEngine):
        return [engine.generate(each) for each in requests]
    found = dict(engine.generate_all(requests))
    return [one for place in range(len(requests)) if isinstance(one := found[place], Generation)]


def mean(found: Generation, name: str) -> float:
    return sum(getattr(loop, name) for loop in found.loops or ()) / len(found.loops or ())


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loops_phases_add_up_and_what_of_it_is_the_host_is_known(engine: str) -> None:
    """A kernel that takes a hundred launches, and a launch that takes ten kernels."""
    with emulated(kernel_us=100.0, launch_us=1.0):
        slow_device = generated(on_device(engine), [12])[0]
    with emulated(kernel_us=1.0, launch_us=10.0):
        slow_host = generated(on_device(engine), [12])[0]
    for found in (slow_device, slow_host):
        assert sum(loop.loop_s for loop in found.loops or ()) == pytest.approx(found.decode_s, rel=0.01)
        for loop in found.loops or ():
            parts = [loop.draft_s, loop.verify_s, loop.sample_s, loop.other_s]
            assert sum(part or 0.0 for part in parts) == pytest.approx(loop.loop_s)
            assert mean(found, "draft_s") > mean(found, "verify_s") > mean(found, "sample_s") > 0
    assert mean(slow_device, "host_s") < 0.05 * mean(slow_device, "loop_s")
    if engine == "eager":
        assert mean(slow_host, "host_s") > 0.95 * mean(slow_host, "loop_s")
    else:  # one launch for all of a stage's kernels
        assert mean(slow_host, "host_s") < 0.3 * mean(slow_host, "loop_s")


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_events_add_no_wait(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated() as device:
        made = on_device(engine)
        generated(made, [4])
        with_events = waits_of(device, made)
        monkeypatch.setattr(local, "stopwatch_of", lambda _, clock, **phases: Stopwatch(clock, **phases))
        assert waits_of(device, made) == with_events


def waits_of(device: Device, engine: Any) -> int:
    before = device.counts.waits.total()
    generated(engine, [8])
    return device.counts.waits.total() - before


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_row_of_a_wave_is_charged_what_the_first_is(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the control: by the host's clock a forward's time falls to the phase that waits for it."""

    def last_over_first() -> float:
        with emulated(kernel_us=100.0, launch_us=1.0):
            found = generated(on_device(engine, k=0, size=4), [4, 4, 4, 12])
        first, *_, last = [one.decode_s / len(one.tokens) for one in found]
        return last / first

    assert 1 / 1.1 < last_over_first() < 1.1
    monkeypatch.setattr(local, "stopwatch_of", lambda _, clock, **phases: Stopwatch(clock, **phases))
    monkeypatch.setattr(StagedBatch, "shared", ("draft", "verify"))
    monkeypatch.setattr(BatchArS, "__init__", DecodingBatch.__init__)
    assert last_over_first() > 1.5
